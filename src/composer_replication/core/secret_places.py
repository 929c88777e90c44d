"""Secrets that the place they stand in gives away: URLs, headers, command lines, statements of SQL,
lines of a tool's own file.

A rule is tried where its needle stands in the text in small letters, and looks at some hundred
letters from there on. Its group is the secret. What is assigned to a name is in
core/secret_names.py.
"""

from __future__ import annotations

import re

from composer_replication.core.secret_tokens import END, Rule


def _place(
    kind: str,
    needles: str,
    pattern: str,
    *,
    by_line: bool = False,
    by_word: bool = False,
    odd: bool = False,
    drawn: bool = False,
    gate: str = "",
    around: int = 0,
) -> Rule:
    """A rule for a place; its needles are in small letters, stand apart by ~ and are met in either
    case."""
    return Rule(
        kind,
        tuple(needles.split("~")),
        re.compile(pattern),
        by_line,
        by_word,
        odd=odd,
        drawn=drawn,
        gate=gate,
        around=around,
    )


# A line of YAML, `password: letmein`: no digit or odd letter gives the value away, so only the
# whole line counts. What stands in braces is code, and so are names of types, words about
# passwords, dotted names and what YAML does not take as text.
_YAML_PASSWORD = (
    r"(?<![{(\[,;]\n)[ \t]{0,40}(?:\d{1,7}[\t\u2192][ \t]{0,40})?(?:-"
    r" )?(?i:password|passwd|secret):[ \t]{1,8}"
    r"(?![*!~/%@.|>?=-])(?!(?i:str|bytes|string|int|integer|number|bool|boolean|any|text|char|varchar|unknown|never|object|required|true|false|yes|no|on|off)"
    r"\b)(?!(?i:[\"']?\S{0,64}(?:passw|secret|hash|token|crypt|param|input|valid|option|string|field|null|none|cred|required)))"
    r"(?![A-Za-z_]\w{0,40}\.)(?![A-Z][A-Za-z]{0,60}!?[ \t\r]{0,8}$)"
    r"[\"']?([^\s\"'`,;()\[\]{}<>$\\|&#:]{4,64})[\"']?["
    r" \t]{0,8}(?:#[^\n]{0,200})?\r?$(?!\s{0,80}(?:\d{1,7}[\t\u2192]\s{0,40})?[})\]])"
)
# Base64 of a name and a password mixes small and large letters; "Basic authentication" does not.
_BASIC_HEADER = (
    r"(?i:authorization\\{0,3}[\"']?\s{0,4}[:=,]\s{0,4}\\{0,3}[\"']?basic)\s{1,4}"
    r"((?=[A-Za-z0-9+/]{0,200}[a-z0-9][A-Z])[A-Za-z0-9+/_-]{8,}={0,2})"
)
# Any scheme but those whose first word is no secret, or none: "Authorization: token ...",
# "Authorization: Bot ...".
_AUTH_HEADER = (
    r"(?i:authorization)\\{0,3}[\"']?\s{0,4}[:=,]\s{0,4}\\{0,3}[\"']?(?:[A-Za-z][A-Za-z-]{1,24}\s{1,4})?(?!(?i:AWS4-|hmac-|digest))"
    r"(?:(?i:key|token|api_?key|access_token)=[\"']?)?([A-Za-z0-9._~+/:-]{12,}={0,2})(?![A-Za-z0-9_(=])"
)
# From the first cookie that names a session or a login to the end of the cookies.
_COOKIES = (
    r"(?i:cookie)\\{0,3}[\"']?\s{0,2}:\s{0,4}\\{0,3}[\"']?(?:[^\s;=\"']{1,60}=[^\s;\"']{0,300};\s{0,2}){0,20}?"
    r"[\w.-]{0,40}(?i:sess|sid|auth|token|jwt|login|remember)[\w.-]{0,40}=([^\s;\"'\\]{12,4000}(?:;\s{0,2}[^\s;=\"'\\]{1,60}=[^\s;\"'\\]{1,4000}){0,20})"
)
# The same pairs without the name of the header, as `curl -b` takes them.
_COOKIE_PAIRS = (
    r"[\w.-]{1,60}=([^\s;\"'\\]{12,4000}(?:;\s{0,2}[^\s;=\"'\\]{1,60}=[^\s;\"'\\]{1,4000}){0,20})"
)
_WORD_OF_SHELL = r"[^\s\"'$`\\<>(){}\[\];|&]"
_Q = r"[\"']?"
# The words of a command line up to a flag, on one line and in one command.
_WORDS = r"(?:[^\n|;&]{0,160}?\s)?"
_VALUE = rf"{_Q}((?![-$<]){_WORD_OF_SHELL}{{4,128}})"
_NOT_A_PORT = r"(?!\d{1,5}(?:[\s:\"';]|\Z))"
_PIPED = (
    r"[^\n]{0,80}?(?:echo|printf)(?: -[ne]{1,2}| [\"']?%s(?:\\n)?[\"']?)?\s{1,4}"
    rf"(?:{_Q}([^\s\"'|$<]{{4,200}}){_Q}|[\"']([^\"'\n$`]{{8,80}})[\"'])\s{{0,4}}\|"
)
# Letters of both cases and a digit: no word and no version.
_MIXED = r"(?=[^\s\"']{0,64}[a-z])(?=[^\s\"']{0,64}[A-Z])(?=[^\s\"']{0,64}\d)"


def _flag(commands: str, flag: str) -> Rule:
    """A command's name, then within the same command a flag, then a password."""
    return _place(
        "password", commands, rf"(?i:\w[\w-]{{0,24}}(?: [ax](?= ))?)\s{_WORDS}{flag}{_VALUE}"
    )


_URLS = (
    _place(
        "basic_auth",
        "://",
        r"(?<=[A-Za-z0-9])://[^\s:/@\"'`<>\[\]{}$\\]{0,100}+:(?!\$[A-Z{(]|%s|\*\*\*)([^\s/\"'`<>\[\]{}\\]{3,160})@(?=[A-Za-z0-9\[])",
        gate="@",
    ),
    _place(
        "basic_auth",
        "://",
        r"(?<=[a-z0-9])://([A-Za-z0-9_.~=-]{16,400}+)(?::[\w-]{0,20})?@(?=[A-Za-z0-9\[])",
        odd=True,
        gate="@",
    ),
    _place("basic_auth", "@tcp(", r"[\w.$-]{1,64}:([^\s\"'`]{3,64})@tcp\(", by_word=True),
    _place("basic_auth", "thin:", r"(?i:thin):[\w$#.-]{1,64}/([^\s@\"'/]{3,128})@"),
    _place(
        "basic_auth",
        "sqlplus",
        r"(?i:sqlplus)\s{1,4}(?:-\S{1,8}\s{1,4}){0,3}[\"']?[\w$#.-]{1,64}/([^\s@\"'/]{3,128})@",
    ),
    _place(
        "rpc_key",
        "alchemy.com/~infura.io/~quiknode.pro/~ankr.com/",
        r"[a-z.]{6,20}/(?:[a-z0-9_-]{1,20}/){0,2}([A-Za-z0-9_-]{24,64})",
        odd=True,
    ),
    _place(
        "make_webhook",
        ".make.com/",
        r"(?:https?://)?hook\.[a-z]{2}\d\.make\.com/([a-z0-9]{24,40})",
        by_word=True,
    ),
    _place(
        "braintree_token", "access_token$", r"access_token\$[a-z]{4,12}\$[a-z0-9]{16}\$[a-f0-9]{32}"
    ),
    _place("onion_key", "ed25519-v3:", r"ED25519-V3:([A-Za-z0-9+/]{60,90}={0,2})"),
    # Codes and tokens of an identity provider, good for one exchange.
    _place(
        "oauth_code",
        "?code=~&code=~ code=~'code=~\"code=",
        r"[?& \"']code=([A-Za-z0-9._~/%-]{20,1000})",
        drawn=True,
    ),
    # Links that let anybody in who has them.
    _place(
        "login_link",
        "://",
        r"://[^\s/]{1,80}/(?:[\w.-]{1,40}/){0,4}?(?:reset|magic|invite|verify|confirm|activate|auth|join|accept)[\w-]{0,20}"
        r"/(?:[a-z]{2,12}/)?([A-Za-z0-9_-]{24,400})(?![\w./-])",
        drawn=True,
    ),
    _place("calendar_link", "/private-", r"/private-([0-9a-f]{32})(?![0-9a-f])"),
    _place(
        "webhook",
        "/webhook/~/webhooks/",
        r"/webhooks?/(?:[a-z]{2,12}/)?([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?![\w-])",
    ),
    _place(
        "basic_auth",
        "contribsys",
        r"(?i:contribsys__com)[\"']?\s{0,3}[:=]\s{0,3}[\"']?([0-9a-f]{8}:[0-9a-f]{8})",
    ),
    _place("otp_secret", "secret=", r"(?i:secret)=([A-Za-z2-7]{16,128}={0,6})", gate="otpauth"),
)
_HEADERS = (
    _place(
        "bearer_token",
        "bearer",
        r"(?i:bearer)(?:\s{1,4}|%20|\+|:\s{0,2})[\"']?([A-Za-z0-9._~+/-]{16,4000}={0,2})",
        odd=True,
    ),
    _place("basic_auth", "authorization", _BASIC_HEADER),
    _place("bearer_token", "authorization", _AUTH_HEADER, odd=True),
    _place(
        "basic_auth",
        "basic ",
        r"(?i:basic)"
        r" ((?=[A-Za-z0-9+/]{0,60}[a-z0-9][A-Z])(?=[A-Za-z0-9+/]{0,60}[0-9])"
        r"[A-Za-z0-9+/]{15,200}={0,2})(?![A-Za-z0-9_+/-])",
        odd=True,
    ),
    _place("cookie", "cookie", _COOKIES, odd=True),
    _place(
        "cookie", "curl ", r"curl [^\n]{0,300}?(?:-b|--cookie)[ =]?[\"']?" + _COOKIE_PAIRS, odd=True
    ),
    _place(
        "cookie",
        "cookies={~cookies = {~cookies: {",
        r"[\w]{7}\s?[=:]\s?\{[^}\n]{0,200}?[\"'][^\"'\n]{1,40}[\"']\s?:\s?[\"']([^\"'\s]{16,400})[\"']",
        odd=True,
    ),
    # A line of a browser's cookies.txt.
    _place(
        "cookie",
        "true\t/~false\t/",
        r"(?:TRUE|FALSE)\t/\S{0,60}\t(?:TRUE|FALSE)\t\d{1,12}\t\S{1,60}\t(\S{16,400})",
        odd=True,
    ),
    _place("auth_digest", 'response="', r"response=\"([0-9a-f]{32,64})\"", gate="digest"),
    _place(
        "basic_auth",
        "auth plain ~auth login ",
        r"(?i:auth (?:plain|login)) ([A-Za-z0-9+/]{12,200}={0,2})(?![\w.])",
        odd=True,
    ),
    _place(
        "fcm_key", ":apa91b", r"(AAAA[A-Za-z0-9_-]{7}:APA91b[A-Za-z0-9_-]{60,160})", by_word=True
    ),
)
_LINES = (
    _place("password", "password:", r"(?m)" + _YAML_PASSWORD, by_line=True),
    _place("password", "passwd:", r"(?m)" + _YAML_PASSWORD, by_line=True),
    _place("password", "secret:", r"(?m)" + _YAML_PASSWORD, by_line=True),
    # host:port:database:user:password, a line of .pgpass
    _place(
        "password",
        ":5432:~:*:",
        r":(?:\d{4}|\*):[\w.*-]{1,64}:[A-Za-z_*][\w.@-]{0,63}:(?=[^\s]{0,127}[^\d\s])(\S{4,128})",
    ),
    _place(
        "password",
        ":6432:~:543",
        r":\d{4}:[\w.*-]{1,64}:[A-Za-z_*][\w.@-]{0,63}:(?=[^\s]{0,127}[^\d\s])(\S{4,128})["
        r" \t]{0,4}(?=\r?\n|\Z)",
        gate="pgpass",
    ),
    _place(
        "password",
        "login ",
        r"(?i:login)[ \t]{1,4}\S{1,64}\s{1,40}(?:(?:port|account|protocol)["
        r" \t]{1,4}\S{1,40}\s{1,40}){0,2}password[ \t]{1,8}(\S{4,128})",
        gate="machine",
    ),  # a line of .netrc
    _place(
        "password",
        "snmp-server community ~rocommunity ~rwcommunity ",
        r"[\w-]{0,12}[ ]?(?i:community6?)[ \t]{1,8}(?!(?:public|private)\b)([^\s\"'<$]{4,64})",
    ),
    _place(
        "password",
        "::add-mask::~issecret=true]",
        r"(?:::add-mask::|(?i:issecret=true)\][ ]{0,4})(\S{4,160})",
    ),
    _place(
        "recovery_codes",
        "recovery code~backup code~scratch code",
        r"(?i:[a-z]{6,8}"
        r" codes?)[^\n:]{0,80}:\s{0,8}((?:[-*\d.)\s]{0,8}(?=[a-z0-9-]{0,12}\d)[a-z0-9]{4,10}"
        r"(?:[- ][a-z0-9]{4,10}){0,3}[\s,]{0,4}){2,20})",
    ),
    _place(
        "pin",
        "pin is ~pin: ~otp is ~otp: ~otp code~2fa code~mfa code~verification code~security code",
        r"(?i:[a-z0-9]{3,12}(?: code)?)(?: is|:|=)[ ]{0,2}[\"'`]?(\d{4,8})\b",
    ),
    _place(  # an ACL of Redis
        "password",
        "setuser ~ +@~ allkeys",
        r"[^\n]{0,60}?(?i:user) \S{1,64} (?:[^\s>#]{1,40} ){0,8}(?:>|#(?=[0-9a-f]{64}\b))"
        r"([^\s\"']{4,128})(?=[ ]{1,4}(?:[~+&@%-]|on|off|allkeys)|[ ]{0,4}$)",
        by_line=True,
    ),
    _place(
        "password", "> auth ~ auth default ", rf"[^\n]{{0,8}}(?i:auth) (?:[\w.-]{{2,32}} )?{_VALUE}"
    ),
    _place(
        "unseal_key",
        "unseal key ~recovery key ~operator unseal ",
        r"(?i:[a-z]{6,8} (?:key \d{1,2}:|unseal)) {1,4}([A-Za-z0-9+/]{40,100}={0,2})",
    ),
    _place(
        "unseal_key",
        'unseal_keys_~recovery_keys_~"keys_base64"',
        r"\"?\w{4,20}\"?\s{0,4}:\s{0,4}\[\s{0,12}([^\]]{40,4000}?)\s{0,12}\]",
    ),
    # The encrypted body of ansible-vault: its password is often guessable.
    _place(
        "vault_block",
        "$ansible_vault;",
        r"\$ANSIBLE_VAULT;\d\.\d;AES256(?:;[\w.-]{1,64})?"
        r"((?:(?:\r?\n|\\n)[ \t+>|\u2502]{0,40}(?:\d{1,6}[\t\u2192:]["
        r" \t]{0,40})?[0-9a-f]{10,160}){1,400})",
    ),
    # A value that Terraform drew, in its state.
    _place(
        "password",
        '"result"',
        rf"\"result\"\s{{0,4}}:\s{{0,4}}\"{_MIXED}([^\"\s]{{8,200}})\"",
        gate='"attributes"',
    ),
    _place(
        "password",
        "ses_smtp_password_v4",
        r"ses_smtp_password_v4\"?\s{0,4}[:=]\s{0,4}\"([A-Za-z0-9+/=]{40,60})\"",
    ),
    _place(
        "assigned_secret",
        '-oauth"~-token"',
        r"-(?:oauth|token)\"\s{0,4}:\s{0,4}\{\s{0,12}\"[\w.-]{3,60}\"\s{0,4}:\s{0,4}\"([A-Za-z0-9_-]{20,100})\"",
    ),
    _place(
        "password",
        "new value: ",
        r"(?i:new value): {1,4}([A-Za-z0-9*_=+-]{16,40})(?![^\s\"'\\])",
        gate="password",
        odd=True,
    ),
    # netsh shows a wireless password
    _place("password", "key content", r"(?i:key content)\s{0,20}: (\S{8,64})"),
    _place("password", ': xauth "~: eap "~: psk "', r": (?:XAUTH|EAP|PSK) \"([^\"\n]{4,128})\""),
    _place(
        "otp_secret",
        "setup key~authenticator~totp~manual entry",
        r"[^\n]{0,80}?(?<![\w-])((?:[A-Z2-7]{4}[ -]){3,15}[A-Z2-7]{4}|(?=[a-z"
        r" ]{0,60}[2-7])(?:[a-z2-7]{4} ){3,15}[a-z2-7]{4})(?![\w-])",
    ),
    _place(
        "password",
        "password for ",
        r"(?i:password for) \S{1,80} ?= ?(?:(?i:password)\()?[\"']([^\"'\s]{4,128})[\"']",
    ),
    _place(
        "password",
        "requirepass ~masterauth ",
        r"(?i:requirepass|masterauth)[ \t]{1,8}[\"']?([^\s\"'<$]{4,128})",
    ),
    _place(
        "password",
        "identified by~identified with",
        r"(?i:identified\s{1,4}(?:with\s{1,4}\S{1,40}\s{1,4})?(?:by|as)\s{1,4}(?:password\s{1,4})?)"
        r"(?:\\{0,3}[\"']([^\"'\s\\]{3,128})[\"'\\]|(?=[^\s\"';]{0,60}\d)([^\s\"';()]{6,128}))",
    ),
)
_COMMANDS = (
    _place(
        "password", "mysql", rf"mysql\w{{0,12}}\s{_WORDS}-p(?![\d:]{{1,12}}(?:[\s\"';]|\Z)){_VALUE}"
    ),
    _place("password", " login ", rf" login {_WORDS}-p[ =]?{_NOT_A_PORT}{_VALUE}"),
    _flag("mariadb", rf"-p{_NOT_A_PORT}"),
    _place(
        "password",
        " -p ",
        r"[^\n|;&]{0,160}?(?<![\w-])(?:mongo(?:sh|dump|export|import|restore)?|zip|unzip|sqlcmd|bcp|mosquitto_\w{3}|snowsql|psexec(?:\.exe)?|cqlsh|influx|evil-winrm|crackmapexec|nxc|useradd|usermod|twine|ipmitool)"
        rf"\s{_WORDS}-[pP] {_NOT_A_PORT}{_VALUE}",
        by_line=True,
    ),
    _flag("redis-cli", "(?:-a|--pass) ?"),
    _flag("ldap", "-w "),
    _flag("ssh-keygen", "-[NP] "),
    _flag("openssl", "-(?:k|K|pass) "),
    _flag("lftp", r"-u [^\s,]{1,64},"),
    _flag("smbclient~smbmap", r"-U ?[^\s%]{1,64}%"),
    _flag("wget ~http -~https -", r"(?:-a|-u|--auth)[ =]?[^\s:]{1,64}:"),
    _flag("xfreerdp", r"(?:/p(?:ass(?:word)?)?:|-p )"),
    _place(
        "basic_auth",
        "curl ",
        r"curl [^\n]{0,200}?(?:-u|--user)["
        r" =]?[\"']?[\w.@+-]{1,64}:((?=[^\s\"'$]{0,128}[\d!@#%^*+=])[^\s\"'$]{6,128})",
    ),
    _place(
        "basic_auth",
        "curl ",
        r"curl [^\n]{0,200}?(?:-u|--user)[ =]?[\"']?([\w.-]{16,128}):?[\"'\s]",
        odd=True,
    ),
    _place(
        "password",
        "login(~authenticate(~credential(~credentials(~basicauth(~auth(",
        r"[\w.]{1,20}\(\s{0,8}[\"'][^\"'\n]{1,64}[\"']\s{0,2},\s{0,8}[\"']([^\"'\s]{6,128})[\"']",
        odd=True,
    ),
    _place(
        "token",
        " login ",
        r" login (?:--?[\w-]{1,20}[ =]){0,3}([A-Za-z0-9._-]{20,400})(?=\s|\Z)",
        odd=True,
    ),
    _place("token", " -k ", r" -k ([A-Za-z0-9._-]{24,400})(?=\s|\Z)", drawn=True),
    # A value that looks drawn goes behind -p, whatever the command is.
    _place(
        "password",
        " -p ",
        rf" -[pP] {_Q}{_MIXED}([A-Za-z0-9!@#%^*_+?~=.-]{{8,64}}){_Q}(?=\s|\Z)",
        drawn=True,
    ),
    _place(
        "token",
        "snyk auth ~codecov -t ",
        r"(?:snyk auth|codecov -t) ([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})",
    ),
    _place(
        "password",
        "add_user ~change_password ~authenticate_user ",
        rf"\w{{6,20}} \S{{1,64}} {_VALUE}(?=[\s\"']|\Z)",
    ),
    _place(
        "assigned_secret",
        "mc alias set ",
        r"mc alias set \S{1,40} \S{4,200} ([^\s\"'$<]{3,128} [^\s\"'$<]{8,128})",
    ),
    _place(
        "assigned_secret",
        "secrets set ~config:set ",
        r"\b[A-Z][A-Z0-9_]{1,60}=[\"']?([^\s\"'$]{12,400})",
        around=300,
        drawn=True,
    ),
    _place(
        "password",
        "chpasswd~passwd ",
        r"\w{6,8} [^\n]{0,60}?<<< ?[\"']?(?:[\w.-]{1,32}:)?([^\s\"'$<:]{6,200})",
    ),
    _place(
        "password",
        "encrypt_string ",
        rf"encrypt_string (?:--\S{{1,40}}[ =]\S{{1,80}} ){{0,3}}{_VALUE}",
    ),
    _flag("7z ~unrar x ", r"-p(?!\s)"),
    _flag("snmpwalk~snmpget~snmpset", "-A "),
    _flag("snmpwalk~snmpget~snmpset", "-X "),
    _place("password", "rclone obscure ", rf"rclone obscure {_VALUE}"),
    _place(
        "password", "<auth-user-pass>", r"<auth-user-pass>\s{1,4}\S{1,80}\s{1,4}(\S{4,128})\s{1,4}<"
    ),
    _place(
        "password", "assword:", r"assword:[^\n]{0,24}\n[^\n]{0,16}send(?: --)? \"([^\"\\\n]{4,64})"
    ),
    _place(
        "password",
        "openssl passwd ",
        rf"openssl passwd (?:-\S{{1,12}} (?:-salt \S{{1,16}} )?){{0,3}}{_VALUE}",
    ),
    _place("password", "net user ", rf"net user \S{{1,40}} {_VALUE}(?=\s)"),
    _place(
        "password",
        "add-generic-password~add-internet-password",
        rf"add-\w{{1,10}}-password {_WORDS}-w {_VALUE}",
    ),
    _place(
        "password",
        " pass:",
        r"(?:(?<=-passin)|(?<=-passout)|(?<=-pass)|(?<=-passwd)|(?<=-[kp]))"
        r" [\"']?pass:([^\s\"'$<`]{4,128})",
    ),
    _place("password", "\"pass:~'pass:", r"(?<=\s)[\"']pass:([^\s\"'$<`]{4,128})[\"']"),
    # net use Z: \\server\share /user:name password, in either order
    _place(
        "password",
        "net use ",
        r"net use (?:\S{1,3}: )?\\\\\S{1,80} (?:/user:\S{1,64}" rf" )?(?!/){_VALUE}(?=[\s\"']|\Z)",
    ),
    _place("erlang_cookie", "setcookie ", r"(?<=-)setcookie [\"']?([A-Za-z0-9_!-]{8,80})"),
    _place("token", "wandb.login(", r"wandb\.login\((?:key=)?[\"']?([0-9a-f]{40})(?![0-9a-f])"),
    _place(
        "token",
        "pushover",
        r"(?i:pushover)[\w.-]{0,20}[\"']?\s{0,3}[:=]\s{0,3}[\"']?([a-z0-9]{30})(?![\w-])",
        odd=True,
    ),
    # The id and the secret of a client, one behind the other: new Client('...', '...')
    _place(
        "assigned_secret",
        "productionenvironment(~sandboxenvironment(~client(~api(~sdk(~connection(~credential(~provider(",
        r"\w{3,24}\(\s{0,40}[\"'][^\"'\n]{3,120}[\"']\s{0,4},\s{0,40}[\"']([A-Za-z0-9_+/=-]{20,120})[\"']",
        drawn=True,
    ),
    # Members of a class or an enum of keys.
    _place(
        "assigned_secret",
        "keys {~secrets {~credentials {~keys:\n~secrets:\n~apikeys",
        r"(?:let|var|val|const|string|static)\b[^=\n\"]{1,60}=\s{0,4}[\"']([A-Za-z0-9_-]{20,120})[\"']",
        around=500,
        drawn=True,
    ),
    _place(  # Perl's DBI, PHP's PDO: the address, the name, the password
        "password",
        "connect(~new pdo(~connection(~database(",
        r"(?i:[a-z"
        r" ]{3,10})\(\s{0,8}[\"'][^\"'\n]{2,160}[\"']\s{0,4},"
        r"\s{0,8}[\"'][^\"'\n]{1,64}[\"']\s{0,4},\s{0,8}"
        r"[\"'](?=[^\"'\n]{0,60}[\d!#%&*+@^])([^\"'\s$]{4,128})[\"']",
    ),
    # A dump of a file whose name says what is in it.
    _place(
        "shown_secret",
        "$ xxd ~$ hexdump ~$ od ~hexdump -c",
        r"(?:\$ )?(?:xxd|hexdump|od) [^\n]{0,80}?(?i:pass|secret|cred|token|psk|\.key)[^\n|]{0,40}"
        r"((?:\n[ \t]{0,8}[0-9a-f]{6,8}:?(?=[ \t])[^\n]{1,100}){1,60})",
    ),
    # Values that a script decodes from base64 before it uses them.
    _place(
        "encoded_secret",
        "base64 -d~base64 --decode",
        r"[^\n]{0,120}?(?i:pass|pw|secret|token|key|cred|auth)[^\n]{0,40}?(?:echo|printf|<<<)"
        r"(?: -[ne]{1,2}| [\"']?%s[\"']?)? ?[\"']?([A-Za-z0-9+/]{8,400}={0,2})[\"']?(?=[ )])",
        by_line=True,
    ),
    _place("password", "sshpass", rf"sshpass\s{{1,4}}-p\s{{0,4}}{_VALUE}"),
    _place(
        "password",
        "chpasswd",
        r"[^\n]{0,80}?[\s\"'][\w.-]{1,32}:([^\s\"':|]{4,64})[\"']?\s{0,4}\|[^\n|]{0,40}chpasswd",
        by_line=True,
    ),
    _place(
        "password",
        "--password-stdin~sudo -s~passwd --stdin~| wg pubkey~| kinit~secret put ~| passwd~|"
        " smbpasswd~secret create ~--with-token~| cryptsetup",
        _PIPED,
        by_line=True,
    ),
    _place(
        "password",
        "htpasswd",
        rf"htpasswd\s{_WORDS}-\w{{0,6}}b\w{{0,6}}\s{{1,4}}(?:\S{{1,80}}\s{{1,4}})?[\w.@-]{{1,64}}\s{{1,4}}{_VALUE}",
    ),
    _place("password", "wpa_passphrase", rf"wpa_passphrase\s{{1,4}}\S{{1,64}}\s{{1,4}}{_VALUE}"),
)
# The dialogue of a server and its client while one signs in.
_TURN = r"(?:\r?\n|\\r?\\n)"
_BASE64_TURN = (
    rf"{_TURN}[^\n]{{0,40}}?(?<![A-Za-z0-9+/])([A-Za-z0-9+/]{{8,200}}={{0,2}})["
    r" \t\"']{0,4}(?=\r?\n|\\|\Z)"
)
_DIALOGUES = (
    _place(
        "password",
        "user ",
        rf"USER \S{{1,80}}(?:[^\n]{{0,8}}{_TURN}[^\n]{{0,160}}){{1,2}}?\bPASS :?(\S{{4,128}})",
    ),  # FTP, POP3, then IRC
    _place(
        "password",
        "pass ",
        rf"PASS :?(\S{{4,128}})[ \t]{{0,4}}{_TURN}[^\n]{{0,40}}?\b(?:NICK|230|USER|\+OK)\b",
    ),
    _place(
        "password",
        "331 p~331 u~+ok ",
        rf"(?:331|\+OK) [^\n]{{0,160}}?{_TURN}[^\n]{{0,40}}?\bPASS (\S{{4,128}})",
    ),
    _place(
        "password",
        " login ",
        r"(?<=\d) LOGIN \S{1,80} \"?([^\s\"]{4,128})\"?[ \t]{0,4}(?=\r?\n|\\|\Z)",
    ),
    _place("password", "334 ugfzc3dvcmq6", rf"334 UGFzc3dvcmQ6[^\n]{{0,8}}?{_BASE64_TURN}"),
    # a line of Postfix's sasl_passwd
    _place(
        "password", ":587 ~:465 ~:25 ~:2525 ~:587\t", r":\d{2,4}[ \t]{1,8}[^\s:]{1,80}:(\S{4,128})"
    ),
)
# Lines of the settings of routers and switches.
_ROUTERS = (
    _place(
        "password",
        "radius-server host ~tacacs-server host ",
        r"[a-z]{6}-server host [^\n]{1,80}? key (?:[057] )?([^\s\"'<$]{4,128})",
    ),
    _place(
        "password",
        "rootpw ",
        r"rootpw (?:--plaintext )?([^\s\"'<$-]\S{3,127})(?=[ \t]|\r?\n|\Z)",
        odd=True,
    ),
    _place(
        "password",
        "nickserv",
        r"(?i:nickserv:? identify) (?:[\w-]{2,30} )?(\S{4,128})(?=\s{0,4}(?:\n|\Z))",
    ),
    _place(
        "password",
        "chpasswd:",
        r"chpasswd:\s{0,4}\n(?:[^\n]{0,60}\n){0,3}?[ \t-]{1,12}[\w-]{1,32}:([^\s:|>]{4,128})["
        r" \t]{0,4}(?=\r?\n|\Z)",
    ),
    _place(
        "password",
        "isakmp key ~tacacs-server key ~radius-server key ",
        r"[a-z-]{6,14} key (?:[05-9] )?([^\s\"'<$]{4,128})(?=[ \t]|\r?\n|\Z)",
    ),
    _place(
        "password",
        "-digest-key ~key-string ~pre-shared-key ",
        r"(?:-digest-key \d{1,3} md5|key-string|pre-shared-key)(?:"
        r" (?:[057]|local|remote|ascii-text|\S{1,20}text))? "
        r"([^\s\"'<$]{6,128})(?=[ \t]{0,8}\r?\n|;|\Z)",
        odd=True,
        gate="router",
    ),
    _place(
        "password", "neighbor ", r"neighbor [\w.:-]{3,40} password (?:[057] )?([^\s\"'<]{4,128})"
    ),
    _place("password", "wpa-psk ", r"wpa-psk (?:ascii|hex) (?:[078] )?([^\s\"'<]{8,128})"),
)
_SESSIONS = (
    _place(
        "cookie",
        "sessionid~phpsessid~connect.sid~_session~session_id",
        r"(?:(?i:session_?id|_session)(?==)|(?i:phpsessid|connect\.sid|_session)|sessionid)"
        r"\\{0,3}[\"']?\]?\s{0,2}[=:,]\s{0,2}\\{0,3}[\"']?(?![0-9a-f]{8}-[0-9a-f]{4}-)((?=[^\s\"';,&]{0,60}\d)[A-Za-z0-9.!%~*_-]{20,200})(?![\w-])",
        drawn=True,
    ),
    _place("cookie", "sessionid", r"(?<=[jJ])(?i:sessionid)=([0-9A-F]{32}(?:[.!][\w.-]{1,60})?)"),
    _place(
        "session",
        "sessionid",
        r"(?i:sessionid)[^<>\n]{0,80}>\s{0,20}([^<>\s]{20,400})<",
        drawn=True,
    ),
)
_CRYPT = (
    _place(
        "password_hash",
        "scram-sha-",
        r"SCRAM-SHA-(?:1|256|512)\$\d{1,7}:([A-Za-z0-9+/=]{8,64}\$[A-Za-z0-9+/=]{20,100}:[A-Za-z0-9+/=]{20,100})",
    ),
    # an account of Windows
    _place(
        "password_hash",
        ":::",
        r"[^\s:]{0,64}:\d{1,7}:([0-9a-fA-F]{32}:[0-9a-fA-F]{32}):::",
        by_word=True,
    ),
    _place(
        "password_hash",
        "$2a$~$2b$~$2y$~$1$~$5$~$6$~$7$~$8$~$9$~$y$~$gy$~$apr1$~$md5$~$sha1$~$argon2~$scrypt$",
        r"(?<![A-Za-z0-9$])\$(?:2[abxy]?\$\d\d\$[./A-Za-z0-9]{53}"
        r"|(?:1|5|6|7|8|9|y|gy|sha1|apr1|md5)\$(?:rounds=\d{1,9}\$|[./A-Za-z0-9]{1,8}\$(?=[./A-Za-z0-9]{1,64}\$))?[./A-Za-z0-9]{1,64}\$[./A-Za-z0-9]{22,128}"
        r"|argon2(?:id|i|d)\$v=\d{1,3}\$m=\d{1,9},t=\d{1,4},p=\d{1,4}\$[A-Za-z0-9+/]{8,100}\$[A-Za-z0-9+/]{16,200}|scrypt\$[^\s\"']{20,300})",
    ),
    _place(
        "password_hash",
        "pbkdf2",
        r"(?i:pbkdf2)[_:-](?i:sha\d{1,3})[$:]\d{1,8}[$:][A-Za-z0-9./+]{4,64}[$:][A-Za-z0-9+/.=]{20,128}",
    ),
)
_KEYS = (
    _place("telegram_token", ":aa", r"(?<=\d{8}):AA[A-Za-z0-9_-]{33}" + END),
    # A JSON web key: the private members have names of one or two letters.
    _place(
        "private_key",
        "kty",
        r"\"(?:d|k|p|q|dp|dq|qi)\\{0,3}\"\s{0,4}:\s{0,4}\\{0,3}\"([A-Za-z0-9_-]{16,1400})\\{0,3}\"",
        around=3000,
    ),
    _place(
        "private_key",
        "rsakeyvalue",
        r"<(?:D|P|Q|DP|DQ|InverseQ)>\s{0,8}([A-Za-z0-9+/=]{16,1400})\s{0,8}<",
        around=4000,
    ),
)
PLACE_RULES: tuple[Rule, ...] = (
    *_URLS,
    *_HEADERS,
    *_LINES,
    *_COMMANDS,
    *_DIALOGUES,
    *_ROUTERS,
    *_SESSIONS,
    *_CRYPT,
    *_KEYS,
)
