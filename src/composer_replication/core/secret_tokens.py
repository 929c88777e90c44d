"""The formats of known tokens: one row per kind - its name, the letters that only such a token
begins with, what follows them.

    token("npm_token", "npm_", W + "{36}")   # a Rule, tried at each "npm_" in a long run of letters

Prefixes and lengths are facts that vendors publish; they were gone through kind by kind in the rule
sets of gitleaks, trufflehog and kingfisher (docs/redaction.md). A row with its own letters needs no
name beside it.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Rule(NamedTuple):
    """A kind of secret: the needles, one of which every text with such a secret holds, and the
    pattern that is tried there.

    The pattern's group 1, where it has one, is the secret; otherwise all of the match. It is tried
    where the needle begins or `back` letters before it, or with `by_line` (`by_word`) where the
    needle's line (word) begins. With `odd` the secret has to hold a digit or look random: a word
    that may stand there is no secret. With `drawn` it has to look random.
    """

    kind: str
    needles: tuple[str, ...]
    pattern: re.Pattern[str]
    by_line: bool = False
    by_word: bool = False
    back: int = 0
    odd: bool = False
    drawn: bool = False
    gate: str = ""
    """Letters that have to stand somewhere in the text; "" = none."""
    around: int = 0
    """So many letters before and behind the needle the pattern is looked for, as often as it is
    there; 0 = it is tried at one place."""


# A token does not begin inside a word. A letter that ends an escape - the n of a JSON "\n", %3D, an
# ANSI colour - is no word.
AFTER_ESCAPE = (
    r"(?<=\\[nrtbf])|(?<=\\u[0-9a-fA-F]{4})|(?<=%[0-9A-F]{2})|(?<=\x1b\[\dm)|(?<=\x1b\[\d\dm)"
)
BEGIN = rf"(?:(?<![A-Za-z0-9_-])|{AFTER_ESCAPE})"
END = r"(?![A-Za-z0-9_-])"
W, U, H, N, B = "[A-Za-z0-9]", "[A-Za-z0-9_-]", "[a-f0-9]", "[a-z0-9]", "[A-Za-z0-9+/_-]"
"""Letters of words, of URL-safe base64, of hex, of base 36, of base64."""
_UUID = rf"{H}{{8}}-{H}{{4}}-{H}{{4}}-{H}{{4}}-{H}{{12}}"


def rule(
    kind: str, needles: str, pattern: str, *, back: int = 0, odd: bool = False, drawn: bool = False
) -> Rule:
    """A rule for a token by its whole pattern; its needles stand apart by blanks."""
    return Rule(kind, tuple(needles.split()), re.compile(pattern), back=back, odd=odd, drawn=drawn)


def token(kind: str, needles: str, rest: str, *, odd: bool = False, drawn: bool = False) -> Rule:
    """A rule for a token that begins with one of some prefixes and goes on with `rest`."""
    begins = "|".join(map(re.escape, needles.split()))
    return rule(kind, needles, f"{BEGIN}(?:{begins}){rest}{END}", odd=odd, drawn=drawn)


# The rest of a key in base64, in one line or in many.
_KEY_BODY = r"(?:[A-Za-z0-9+/=]|\\n|\r?\n(?=[ \t]{0,8}[A-Za-z0-9+/=]{16})[ \t]{0,8}){60,6000}"


_MODELS = (
    token("anthropic_key", "sk-ant-", rf"(?:[a-z0-9]{{1,16}}-)?{U}{{20,400}}"),
    token("openrouter_key", "sk-or-", rf"(?:v\d+-)?{W}{{32,128}}"),
    token("langfuse_key", "sk-lf-", r"[a-f0-9-]{36}"),
    token("openai_key", "sk-proj- sk-svcacct- sk-admin- sk-None- sk-service-", rf"{U}{{20,400}}"),
    token("openai_key", "sk-", rf"{W}{{32,128}}"),
    token("model_key", "sk-", rf"(?:[a-z0-9]{{1,12}}[_-]){{1,2}}{W}{{24,128}}", odd=True),
    token("model_key", "sk_", rf"(?:[a-z]{{2,8}}_)?{H}{{32,64}}"),
    token("api_key", "sk_ test_sk_ live_sk_", rf"(?:[a-z]{{2,8}}_)?{W}{{24,128}}", drawn=True),
    token("helicone_key", "sk-helicone-", rf"{U}{{24,64}}"),
    token("friendli_key", "flp_", rf"{W}{{40,64}}"),
    token("runway_key", "key_", rf"{H}{{128}}"),
    token("meshy_key", "msy_ tsk_", rf"{W}{{32,64}}"),
    token("databento_key", "db-", rf"{W}{{29}}", drawn=True),
    token("coze_token", "pat_", rf"{W}{{40,72}}", drawn=True),
    token("openai_key", "sess- ek_", rf"{W}{{32,64}}", drawn=True),
    rule("bedrock_key", "bedrock-api-key-", rf"{BEGIN}bedrock-api-key-[A-Za-z0-9+/=_-]{{40,2000}}"),
    token("huggingface_token", "hf_ api_org_", rf"{W}{{30,64}}"),
    token("groq_key", "gsk_", rf"{W}{{32,64}}"),
    token("xai_key", "xai-", r"[A-Za-z0-9_]{40,120}"),
    token("perplexity_key", "pplx-", rf"{W}{{40,64}}"),
    token("nvidia_key", "nvapi-", rf"{U}{{40,100}}"),
    token("replicate_token", "r8_", rf"{U}{{37,40}}"),
    token("fireworks_key", "fw_", rf"{W}{{22,64}}", odd=True),
    token("together_key", "tgp_v1_", rf"{U}{{30,64}}"),
    token("anyscale_key", "esecret_", rf"{W}{{20,64}}"),
    token("cerebras_key", "csk-", rf"{W}{{32,64}}"),
    token("jina_key", "jina_", rf"{U}{{40,80}}"),
    token("voyage_key", "pa-", rf"{U}{{43}}", odd=True),
    token("llamacloud_key", "llx-", rf"{W}{{32,64}}"),
    token("langsmith_key", "lsv2_", rf"(?:pt|sk)_{H}{{32}}_{H}{{10}}"),
    token("langsmith_key", "ls__", rf"{H}{{32}}"),
    token("tavily_key", "tvly-", rf"(?:(?:dev|prod)-)?{U}{{24,64}}"),
    token("firecrawl_key", "fc-", rf"{H}{{32}}"),
    token("sandbox_key", "e2b_ bb_live_ bb_test_ rpa_ vastai_", rf"{W}{{28,64}}"),
    token("pinecone_key", "pcsk_", rf"{W}{{4,8}}_{W}{{40,80}}"),
    token("wandb_key", "wandb_v1_", rf"{U}{{30,100}}"),
    token("cursor_key", "key_", rf"{H}{{64}}"),
    token("modal_token", "ak- as-", rf"{W}{{22}}", odd=True),
    token("openpipe_key", "opk_", rf"{W}{{32,64}}"),
)
_CODE_HOSTS = (
    token("github_token", "ghp_ gho_ ghu_ ghs_ ghr_", r"[A-Za-z0-9_]{36,255}"),
    token("github_token", "github_pat_", r"[A-Za-z0-9_]{40,255}"),
    rule(
        "gitlab_token",
        "glpat- gldt- glrt- glcbt- glptt- glft- glimt- glagent- gloas- glsoat- glffct- glwt-",
        BEGIN + r"gl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|oas|soat|ffct|wt)-[A-Za-z0-9_.=-]{20,320}",
    ),
    rule("gitlab_token", "GR1348941", rf"GR1348941{U}{{20}}"),
    rule("bitbucket_token", "ATBB", rf"{BEGIN}ATBB[A-Za-z0-9_=.-]{{24,300}}"),
    rule("bitbucket_token", "BBDC-", rf"{BEGIN}BBDC-[A-Za-z0-9+/@_-]{{40,50}}"),
    rule(
        "atlassian_token",
        "ATATT3 ATCTT3 ATTA",
        rf"{BEGIN}(?:AT[AC]TT3[A-Za-z0-9+/_=-]{{60,400}}|ATTA[A-Za-z0-9]{{60,100}})",
    ),
    token("sourcegraph_token", "sgp_", rf"(?:(?:{H}{{16}}|local)_)?{W}{{40,64}}"),
    token("sourcegraph_token", "slk_", rf"{H}{{64}}"),
    token("npm_token", "npm_", rf"{W}{{36}}"),
    rule("pypi_token", "pypi-Ag", rf"{BEGIN}pypi-Ag{U}{{50,1000}}"),
    token("rubygems_key", "rubygems_", rf"{W}{{48}}"),
    rule("clojars_token", "CLOJARS_", rf"{BEGIN}CLOJARS_[A-Za-z0-9]{{60}}"),
    token("docker_token", "dckr_pat_ dckr_oat_", rf"{U}{{20,64}}"),
    rule("artifactory_key", "AKCp", rf"{BEGIN}AKCp[A-Za-z0-9]{{60,80}}"),
    token("artifactory_key", "cmVmdGtu cmVmdG", rf"{W}{{54,64}}"),
    token("postman_key", "PMAK-", rf"{W}{{24}}-{W}{{34}}"),
    token("readme_key", "rdme_", rf"{N}{{70}}"),
    token("sonar_token", "squ_ sqp_ sqa_ sqb_", rf"{H}{{40}}"),
    token("snyk_token", "snyk_uat. snyk_sat.", r"[A-Za-z0-9_.-]{20,200}"),
    token("circleci_token", "CCIPAT_ CCIPRJ_", rf"{W}{{20,24}}_{H}{{40}}"),
    token("buildkite_token", "bkua_ bkct_ bkaj_ bkpt_", rf"{W}{{32,64}}"),
    token("octopus_key", "API-", r"[A-Z0-9]{25,40}", odd=True),
    token("infracost_key", "ico-", rf"{W}{{32}}"),
    token("pulumi_token", "pul-", rf"{H}{{40}}"),
    token("prefect_key", "pnu_ pnb_", rf"{W}{{36}}"),
    token("dbt_token", "dbtc_ dbtu_", rf"{U}{{30,64}}"),
    token("scalingo_token", "tk-us-", rf"{U}{{48}}"),
    token("settlemint_token", "sm_aat_ sm_pat_ sm_sat_", rf"{W}{{16}}"),
    token("expo_token", "expo_", rf"{U}{{36,64}}", odd=True),
    token("apify_token", "apify_api_", rf"{U}{{30,48}}"),
    token("inngest_key", "signkey-", rf"[a-z]{{2,8}}-{H}{{64}}"),
    token("trigger_key", "tr_dev_ tr_prod_ tr_stg_", rf"{W}{{20,32}}"),
    token("dependency_track_key", "odt_", rf"(?:{W}{{8}}_)?{W}{{32,40}}"),
    token("endor_token", "endr+", rf"{W}{{16,40}}", drawn=True),
    token("sourcegraph_token", "sgp_", rf"(?:{H}{{16}}_)?local_{H}{{40}}"),
    token("unkey_key", "unkey_", rf"{W}{{20,40}}", drawn=True),
    token("zuplo_key", "zpka_", rf"{H}{{32}}_{H}{{8}}"),
    token("depot_token", "depot_org_ depot_project_ depot_user_", rf"{U}{{32,128}}"),
    token("n8n_key", "n8n_api_", rf"{U}{{20,200}}"),
    token("gitea_token", "gta_ gto_", rf"{H}{{40,64}}"),
    token("percy_token", "web_ app_ auto_ ss_", rf"{H}{{64}}"),
    token("endor_key", "endr+", r"[A-Za-z0-9-]{16}"),
)
_CLOUDS = (
    rule(
        "aws_key_id",
        "AKIA ASIA ABIA ACCA",
        rf"(?:(?<![A-Za-z0-9])|{AFTER_ESCAPE})(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{{16}}(?![A-Za-z0-9])",
    ),
    rule(
        "aws_secret",
        "AKIA ASIA",
        r"(?:AKIA|ASIA)[A-Z0-9]{16}(?:[\s,:;|\"'\\]{1,12}|[^\n]{1,80}?[\s,:;|\"'\\])((?=[A-Za-z0-9/+]{0,30}[A-Z])(?=[A-Za-z0-9/+]{0,30}[g-z])(?=[A-Za-z0-9/+]{0,36}\d)[A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])",
    ),
    rule(
        "aws_session_token",
        "FwoGZXIvYXdz IQoJb3JpZ2lu FQoGZXIvYXdz",
        r"(?:FwoGZXIvYXdz|IQoJb3JpZ2lu|FQoGZXIvYXdz)[A-Za-z0-9+/=]{60,2000}",
    ),
    rule("aws_bedrock_key", "ABSK", rf"{BEGIN}ABSK[A-Za-z0-9+/]{{80,280}}={{0,2}}"),
    rule(
        "aws_bedrock_key", "bedrock-api-key-", rf"{BEGIN}bedrock-api-key-[A-Za-z0-9+/=]{{20,2000}}"
    ),
    rule("aws_mws_key", "amzn.mws.", rf"amzn\.mws\.{_UUID}"),
    token("google_key", "AIza", rf"{U}{{35}}"),
    token("google_key", "AQ.Ab8", rf"{U}{{40,80}}"),
    rule("google_oauth", "ya29. GOCSPX-", rf"{BEGIN}(?:ya29\.|GOCSPX-){U}{{20,1024}}"),
    rule(
        "azure_client_secret",
        "Q~",
        rf"[A-Za-z0-9_.~-]{{3}}\dQ~[A-Za-z0-9_.~-]{{31,34}}{END}",
        back=4,
    ),
    token("alibaba_key", "LTAI", rf"{W}{{16,26}}", odd=True),
    token("tencent_key", "AKID", rf"{W}{{28,36}}"),
    token("yandex_key", "AQVN", rf"{U}{{35,38}}"),
    token("yandex_key", "y0_", rf"{U}{{50,64}}"),
    token("yandex_key", "YCAJE YCAJ YCM YCN YCP", rf"{U}{{20,38}}", odd=True),
    token("digitalocean_token", "doo_v1_ dop_v1_ dor_v1_", rf"{H}{{40,64}}"),
    token("heroku_key", "HRKU-", rf"{U}{{36,64}}"),
    rule(
        "fly_token",
        "fm1_ fm2_ fo1_ fm1a_ fm1r_",
        rf"{BEGIN}f(?:m1[ar]?|m2|o1)_[A-Za-z0-9+/=_-]{{40,1000}}",
    ),
    token("render_key", "rnd_", rf"{W}{{28,36}}"),
    token("vercel_token", "vcp_ vca_ vci_ vcr_ vck_ vercel_blob_rw_", rf"{U}{{24,80}}", odd=True),
    token("netlify_token", "nfp_ nfc_ nfo_ nfu_ nfb_", rf"{W}{{36,44}}"),
    rule("cloudflare_key", "v1.0-", rf"v1\.0-{H}{{24}}-{H}{{146}}"),
    token("cloudflare_key", "cfut_ cfat_ cfk_", rf"{W}{{40,52}}"),
    token("supabase_token", "sbp_", rf"(?:oauth_)?{H}{{40}}"),
    token("supabase_token", "sb_secret_", rf"{U}{{20,64}}"),
    token("neon_key", "napi_", rf"{N}{{40,80}}"),
    token("mongodb_key", "mdb_sa_sk_", rf"{U}{{36,48}}"),
    token("planetscale_token", "pscale_", r"(?:pw|tkn|oauth)_[A-Za-z0-9_.=-]{32,64}"),
    token("xata_key", "xau_", rf"{W}{{28,48}}"),
    token("scaleway_key", "SCW", r"[A-Z0-9]{17}", odd=True),
    token("databricks_token", "dkea dsapi", rf"{H}{{32}}"),
    rule(
        "terraform_token", ".atlasv1.", r"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{60,70}", back=14
    ),
    rule("vault_token", "hvs. hvb. hvr.", rf"{BEGIN}hv[sbr]\.{U}{{24,300}}"),
    token("openshift_token", "sha256~", rf"{U}{{43}}"),
    token("tailscale_key", "tskey-", rf"[a-z]{{2,12}}-{W}{{8,24}}-{U}{{10,64}}"),
    token("tailscale_key", "tskey-", rf"{U}{{20,80}}", odd=True),
    token("onepassword_token", "ops_eyJ", r"[A-Za-z0-9+/=_-]{100,2000}"),
    token(
        "onepassword_key",
        "A3-",
        r"[A-Z0-9]{6}-(?:[A-Z0-9]{11}|[A-Z0-9]{6}-[A-Z0-9]{5})-[A-Z0-9]{5}-[A-Z0-9]{5}-[A-Z0-9]{5}",
    ),
    rule("age_key", "AGE-SECRET-KEY-", r"AGE-SECRET-KEY-1[0-9A-Z]{50,64}"),
    token("shodan_key", "rh-api-", _UUID),
    token("defined_key", "dnkey-", rf"{U}{{60,90}}"),
    token("launchdarkly_key", "sdk- api- mob-", _UUID),
    token("swarm_token", "SWMTKN-1- SWMKEY-1-", rf"{U}{{40,100}}"),
    rule("k3s_token", "K10", rf"{BEGIN}K10{H}{{64}}(?:::[a-z]{{2,16}}:[^\s\"']{{8,80}})?"),
    rule(
        "authress_key",
        "sc_ ext_ scauth_ authress_",
        rf"{BEGIN}(?:sc|ext|scauth|authress)_{W}{{5,30}}(?:\.{N}{{4,6}})?\.acc[_-][A-Za-z0-9-]{{10,60}}(?:\.[A-Za-z0-9+/_=-]{{30,120}})?",
    ),
    token("elastic_key", "essu_", r"[A-Za-z0-9+/=_-]{40,200}"),
    rule("elastic_token", "eyJ2ZXIi", rf"{BEGIN}eyJ2ZXIi{B}{{60,600}}={{0,2}}"),
    rule(
        "cloudflare_token", "eyJhIjoi", rf"{BEGIN}eyJhIjoi{B}{{100,400}}={{0,2}}(?![A-Za-z0-9_.-])"
    ),
    rule("vault_token", "s.", rf"{BEGIN}s\.{W}{{24}}{END}", drawn=True),
)
_MONEY_AND_MAIL = (
    token(
        "stripe_key",
        "sk_live_ sk_test_ sk_prod_ rk_live_ rk_test_ rk_prod_ sk_sbox_",
        rf"{W}{{16,255}}",
    ),
    token("stripe_key", "whsec_", r"[A-Za-z0-9+/=]{24,64}"),
    token("stripe_key", "ak_live_ pi_", rf"(?:{W}{{30}}|{W}{{24}}_secret_{W}{{20,30}})"),
    rule("square_token", "sq0atp- sq0csp- sq0idp-", rf"{BEGIN}sq0(?:atp|csp|idp)-{U}{{22,64}}"),
    token("square_token", "EAAA", rf"{U}{{60}}"),
    token(
        "shopify_token", "shpat_ shpca_ shppa_ shpss_ shptka_ shpit_ shpua_", r"[A-Fa-f0-9]{32,64}"
    ),
    token("shopify_token", "shltm_", rf"{U}{{40}}"),
    token("razorpay_key", "rzp_live_ rzp_test_", rf"{W}{{14,24}}"),
    token("easypost_key", "EZAK EZTK", rf"{W}{{54}}"),
    token("shippo_token", "shippo_live_ shippo_test_", rf"{H}{{40}}"),
    token("lob_key", "live_ test_", rf"{H}{{35}}"),
    token("mollie_key", "live_ test_", rf"{W}{{30}}", drawn=True),
    token("paddle_key", "pdl_live_apikey_ pdl_sdbx_apikey_", r"[A-Za-z0-9_]{40,90}"),
    token(
        "polar_token", "polar_oat_ polar_pat_ polar_at_u_ polar_at_o_ polar_rst_", rf"{U}{{32,64}}"
    ),
    token("asaas_key", "aact_prod_ aact_hmlg_ aact_", rf"{W}{{60,300}}"),
    token("fleetbase_key", "flb_live_ flb_test_", rf"{W}{{20}}"),
    token("gocardless_token", "live_", rf"{U}{{40}}", odd=True),
    token("duffel_token", "duffel_live_ duffel_test_", r"[A-Za-z0-9_=-]{43}"),
    rule(
        "flutterwave_key", "FLWSECK", rf"{BEGIN}FLWSECK(?:_TEST)?-[A-Za-z0-9]{{12,40}}(?:-X)?{END}"
    ),
    token("plaid_token", "access-sandbox- access-development- access-production-", _UUID),
    rule("paypal_token", "A21AA", rf"{BEGIN}A21AA{U}{{60,200}}"),
    token("mercury_token", "mercury_", r"[a-z]{4,12}_[A-Za-z0-9_]{20,100}", odd=True),
    token("ramp_secret", "ramp_sec_", rf"{W}{{40,60}}"),
    rule("sendgrid_key", "SG.", rf"{BEGIN}SG\.{U}{{16,64}}\.{U}{{16,80}}{END}"),
    token("mailgun_key", "key-", rf"{N}{{32}}"),
    rule("mailchimp_key", "-us", rf"{H}{{32}}-us\d{{1,2}}{END}", back=32),
    token("mandrill_key", "md-", rf"{U}{{22}}", odd=True),
    token("resend_key", "re_", rf"{W}{{8}}_{W}{{20,32}}", odd=True),
    token("brevo_key", "xkeysib- xsmtpsib-", rf"{H}{{64}}-{W}{{16}}"),
    token("twilio_key", "SK", r"[a-fA-F0-9]{32}"),
    token("telnyx_key", "KEY0", rf"[A-F0-9]{{28,36}}_{W}{{20,24}}"),
    token("stytch_key", "secret-live- secret-test-", rf"{U}{{30,64}}"),
    token("persona_key", "persona_production_ persona_sandbox_", rf"{U}{{20,64}}"),
    token("hubspot_token", "pat-na1- pat-eu1- pat-na2- pat-ap1-", _UUID),
    token("typeform_token", "tfp_", r"[A-Za-z0-9_.=-]{40,64}"),
    token("salesforce_token", "3MVG9", r"[A-Za-z0-9._]{75,251}"),
)
_TOOLS = (
    token(
        "slack_token",
        "xoxa- xoxb- xoxc- xoxd- xoxe- xoxo- xoxp- xoxr- xoxs- xwfp-",
        r"[A-Za-z0-9%.-]{15,400}",
    ),
    token("slack_token", "xoxe.xoxb- xoxe.xoxp-", r"[A-Za-z0-9-]{15,400}"),
    token("slack_token", "xapp-", r"\d-[A-Za-z0-9-]{13,200}"),
    rule(
        "slack_webhook",
        "hooks.slack.com",
        r"hooks\.slack\.com\\?/(?:services|workflows|triggers)\\?/([A-Za-z0-9/_+\\-]{20,200})",
    ),
    rule("discord_webhook", "/api/webhooks/", r"/api/webhooks/\d{15,20}/([A-Za-z0-9_-]{40,120})"),
    rule(
        "zapier_webhook", "hooks.zapier.com", r"hooks\.zapier\.com/hooks/catch/([A-Za-z0-9/]{8,40})"
    ),
    rule(
        "teams_webhook",
        "webhookb2/",
        r"webhookb2/([A-Za-z0-9-]{36}(?:@[A-Za-z0-9-]{36}/IncomingWebhook/[A-Za-z0-9-]{16,64}(?:/[A-Za-z0-9-]{16,64}){0,2})?)",
    ),
    rule("tines_webhook", "tines.com", rf"tines\.com/webhook/({H}{{32}}/{H}{{32}})"),
    rule(
        "ifttt_webhook",
        "maker.ifttt.com",
        r"maker\.ifttt\.com/[\w/{}-]{1,80}/key/([A-Za-z0-9_-]{20,64})",
    ),
    token("linear_key", "lin_api_ lin_oauth_ lin_wh_", rf"{W}{{32,64}}"),
    token("notion_token", "ntn_", rf"{W}{{40,50}}"),
    token("notion_token", "secret_", rf"{W}{{43}}"),
    token("figma_token", "figd_ figo_ figp_ figu_ figoh_", r"[A-Za-z0-9_=-]{36,64}"),
    token("clickup_token", "pk_", r"\d{6,9}_[A-Z0-9]{32}"),
    token("klaviyo_key", "pk_", rf"(?:{W}{{6}}_)?{H}{{34}}"),
    token("contentful_token", "CFPAT-", rf"{U}{{43}}"),
    token("frameio_token", "fio-u-", r"[A-Za-z0-9_=-]{64}"),
    token("grafana_token", "glsa_", rf"{W}{{32}}_[A-Fa-f0-9]{{8}}"),
    rule("grafana_token", "glc_", rf"{BEGIN}glc_[A-Za-z0-9+/=]{{32,400}}"),
    rule("grafana_token", "eyJrIjoi", rf"{BEGIN}eyJrIjoi[A-Za-z0-9]{{40,400}}={{0,3}}"),
    token("newrelic_key", "NRAK- NRII- NRIQ- NRJS- NRBR- NRRA- NRSP-", rf"{U}{{19,42}}"),
    token("newrelic_key", "eu01xx", rf"{H}{{26,40}}(?:FFFFNRAL|-NRMA|NRAL)"),
    rule("newrelic_key", "FFFFNRAL", rf"{H}{{32}}FFFFNRAL{END}", back=32),
    token("honeycomb_key", "hcaik_ hcxik_ hcalk_ hcamk_", rf"{W}{{28,64}}"),
    token(
        "dynatrace_token",
        "dt0c01. dt0s01. dt0s02. dt0s03. dt0s06. dt0s08. dt0s16.",
        rf"{W}{{8,24}}\.{W}{{64}}",
    ),
    token("datadog_key", "ddp_ ddw_ ddapp_", rf"{W}{{32,48}}"),
    token("sentry_token", "sntrys_ sntryu_ sntrya_", r"[A-Za-z0-9+/=_-]{40,400}"),
    token("posthog_key", "phx_ phs_", rf"{W}{{40,52}}"),
    token("rootly_token", "rootly_", rf"{H}{{64}}"),
    token("adafruit_key", "aio_", rf"{W}{{28}}"),
    token("adobe_secret", "p8e-", r"[A-Za-z0-9-]{32}"),
    token("scrapfly_key", "scp-live- scp-test-", rf"{H}{{32}}"),
    token("teamwork_token", "tkn.v1_", r"[A-Za-z0-9+/=]{40,120}"),
    token("ubidots_token", "BBFF- BBUS-", rf"{W}{{30}}"),
    token("telnyx_key", "KEY", rf"{U}{{50,64}}", drawn=True),
    token(
        "storecove_key", "storecove_ supernotes_sk- supernotes_sk_", rf"{U}{{32,64}}", drawn=True
    ),
    token("nightfall_key", "NF-", rf"{W}{{32}}", drawn=True),
    token("intra_secret", "s-s4t2ud- s-s4t2af-", rf"{H}{{64}}"),
    token("thog_secret", "thog-secret-", rf"{H}{{32}}"),
    token("riot_key", "RGAPI-", _UUID),
    token("pagerduty_key", "u+", rf"{U}{{18}}", odd=True),
    token("facebook_token", "EAA", rf"{W}{{90,400}}"),
    token("instagram_token", "IGQV IGAA", rf"{W}{{80,400}}"),
    token("pinterest_token", "pina_ pinr_", rf"{W}{{40,400}}"),
    token("linkedin_secret", "WPL_AP1.", r"[A-Za-z0-9.=_-]{16,64}"),
    rule(
        "wallet_key",
        "xprv yprv zprv tprv",
        rf"{BEGIN}[xyzt]prv[1-9A-HJ-NP-Za-km-z]{{100,112}}{END}",
    ),
    rule("wallet_key", "nsec1", rf"{BEGIN}nsec1[02-9ac-hj-np-z]{{58}}{END}"),
    rule("mapbox_token", "eyJ", rf"{BEGIN}[st]k\.eyJ{U}{{30,200}}\.{U}{{20,40}}", back=3),
    token(
        "jwt",
        "eyJ ewog",
        rf"{U}{{8,4000}}={{0,2}}\.(?:eyJ|ewo){U}{{8,8000}}={{0,2}}\.{U}{{8,2000}}",
    ),
    rule(
        "jwt",
        "eyJ",
        rf"{BEGIN}eyJ{U}{{14,2000}}\.{U}{{0,1000}}\.{U}{{10,200}}\.{U}{{10,8000}}\.{U}{{16,64}}{END}",
    ),
    # The first bytes of every RSA key in PKCS #8, for a key that has lost its header.
    rule(
        "private_key",
        "IBADANBgkqhkiG9w0BAQEFAASC",
        rf"[A-Za-z0-9+/]{{6}}IBADANBgkqhkiG9w0BAQEFAASC{_KEY_BODY}",
        back=6,
    ),
    # The same of RSA in PKCS #1, of EC in SEC 1 and PKCS #8, of Ed25519, of OpenSSH's own format,
    # of PKCS #12.
    rule(
        "private_key",
        "IBAAKCAQEA IBAAKCAgEA IBAAKBgQ",
        rf"MII[A-Za-z0-9+/]{{3}}IBAAK(?:CA[Qg]EA|BgQ){_KEY_BODY}",
        back=6,
    ),
    rule("private_key", "IBAzCC", rf"MII[A-Za-z0-9+/]{{3}}IBAzCC{_KEY_BODY}", back=6),
    rule(
        "private_key",
        "MHcCAQEEI MHQCAQEEI MIGHAgEAMBMGByqGSM49 MIGTAgEAMBMG MIG2AgEAMBAG",
        rf"{BEGIN}MI?[A-Za-z0-9]{{3,24}}{_KEY_BODY}",
    ),
    rule(
        "private_key",
        "MC4CAQAwBQYDK2VwBCIEI",
        rf"{BEGIN}MC4CAQAwBQYDK2VwBCIEI[A-Za-z0-9+/]{{40,48}}={{0,2}}",
    ),
    rule("private_key", "b3BlbnNzaC1rZXktdjE", rf"b3BlbnNzaC1rZXktdjE{_KEY_BODY}"),
)
TOKEN_RULES: tuple[Rule, ...] = tuple(
    r for part in (_MODELS, _CODE_HOSTS, _CLOUDS, _MONEY_AND_MAIL, _TOOLS) for r in part
)
# Tokens whose needles have only letters that are in every path: found with str.find, in the long
# runs first.
PLAIN_RULES: tuple[Rule, ...] = (
    token("databricks_token", "dapi", rf"{H}{{32}}(?:-\d)?"),
    token("password_hash", "md5", rf"{H}{{32}}"),  # a role of PostgreSQL
    token("databricks_token", "dsapi", rf"{H}{{32}}"),
    token("databricks_token", "dkea", rf"{H}{{32}}"),
    token(
        "doppler_token",
        "dp.",
        rf"(?:pt|st|ct|sa|scim|audit)\.(?:[a-z0-9_-]{{2,35}}\.)?{W}{{40,44}}",
    ),
    rule("google_oauth", "1//0", rf"(?:(?<![A-Za-z0-9/_-])|{AFTER_ESCAPE})1//0{U}{{40,200}}"),
    token("crates_token", "cio", rf"{W}{{32}}", odd=True),
    token("nuget_key", "oy2", rf"{N}{{43}}"),
    token("harness_token", "pat.", rf"{U}{{22}}\.{W}{{24}}\.{W}{{20}}"),
    token("harness_token", "sat.", rf"{U}{{22}}\.{W}{{24}}\.{W}{{20}}"),
    rule("yandex_key", "t1.", rf"{BEGIN}t1\.{U}{{20,200}}={{0,2}}\.{U}{{80,90}}={{0,2}}"),
    token("dropbox_token", "sl.", rf"(?:u\.)?{U}{{100,2000}}"),
    token("hawk_key", "hawk.", rf"{U}{{20}}\.{U}{{20}}"),
    token("voiceflow_key", "VF.", rf"(?:(?:DM|WS)\.)?{H}{{24}}\.{W}{{16}}"),
)
# Tokens without letters of their own at the front: tried once in each run that is long enough, by
# their shape.
MIN_LONG_RUN = 44
LONG_RULES = re.compile(
    rf"{BEGIN}(?:(?P<airtable_token>pat{W}{{14}}\.{H}{{64}})|(?P<discord_token>[MNO]{U}{{22,27}}\.{U}{{6}}\.{U}{{27,40}})"
    rf"|(?P<ngrok_token>[12]{W}{{26}}_{W}{{20,22}})|(?P<mailgun_key>{H}{{32}}-{H}{{8}}-{H}{{8}})|(?P<maxmind_key>{W}{{6}}_{W}{{29}}_mmk)|(?P<zoho_token>1000\.{H}{{32}}\.{H}{{32}})"
    rf"|(?P<salesforce_session>(?<=[A-Za-z0-9]!)AQ[A-Za-z0-9_.]{{42,200}})|(?P<wallet_key>[5KLc9][1-9A-HJ-NP-Za-km-z]{{50,51}}|S[A-Z2-7]{{55}}|S[UAOCNX][A-Z2-7]{{56}}))(?![A-Za-z0-9_-])"
)
# Letters within: Azure marks its keys near their end, so that scanners know them.
INNER_MARKS = (
    "+ASt",
    "+AEh",
    "+ASb",
    "+ARm",
    "+ABa",
    "+AMC",
    "+AIoT",
    "+ACR",
    "AzFu",
    "AzSe",
    "AzCa",
    "ACDb",
    "AZDO",
    "JQQJ99",
)
INNER_KIND, MIN_INNER, MAX_INNER = "azure_key", 44, 120
