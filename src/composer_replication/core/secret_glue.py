"""The syntax between the name of a secret and its value: a table with one named pattern for each.

    GLUE.match("db_password: ", 11).lastgroup  ->  "assign"

All patterns here read lower-case text, match at most a few hundred characters, and try
nothing twice, so that the search takes linear time.
"""

from __future__ import annotations

import re

_Q = r"\\{0,7}[\"'`]"
"""A quote, also within a literal: \\" """
_LINE = r"(?:\\?\n[ \t+>|]{0,40})"
"""A line end, and what may mark or indent the next line."""

# --- Words between a name and its value: "the password for the shop is ...". Behind more than one
# word only what holds a digit is a value.
_LINKS = (
    "is|was|are|to|=|now|set to|changed to|be"  # English
    # German, French, Spanish, Italian, ...
    "|ist|lautet|wurde|est|es|era|\u00e9|\u00e8|sar\u00e0|jest|to|je|\u00e4r|er|on|olarak|adalah"
)
_LINK = rf"(?:{_LINKS})(?=[: ])"
_SAID_WORD = r"[a-z0-9@._'()/\u00c0-\u024f\u0400-\u04ff-]{1,40}+"
SAID = rf"(?:[ \t]{_SAID_WORD}){{1,8}}+[ \t]?:\s"
_DIGIT_SOON = r"[ \t]?(?=[\"'`*]{0,4}[^\s\d]{0,60}\d)"
SAID_OF = rf"(?:[ \t]{_SAID_WORD}){{0,8}}?[ \t]{_LINK}[: ]{_DIGIT_SOON}"
_ANSWERS = (  # "the password? it's ...", "changed the pw on vm-42 it's ..."
    r"[?,;.] (?:it['\u2019]?s|it is|that['\u2019]?s|use|try)[: ]"
    rf"|(?:[ \t]{_SAID_WORD}){{0,6}}?,? (?:it['\u2019]?s|it is)(?: now)?[: ]{_DIGIT_SOON}"
)
_CJK_LINK = r"(?:\u662f|\u4e3a|\u70ba|\u306f|\ub294|\uc740)"
_CJK = rf"(?:{_CJK_LINK}[ ]?[\uff1a:]?|\uff1a)[ ]?[\u300c\u300e\u201c]?"

# --- What follows the word of a name: the rest of the name, then only what may begin an assignment:
# most words are told from names here.
_SUFFIX = (
    "key[_-]?base|base64|base|b64|hex|prod|production|dev|staging|stage|live|main|value|val|string|str|text|plain|plaintext|clear|raw"
    "|sha256[_-]hex|v[0-9]|[0-9]{1,3}"
)
_MAY_BEGIN = (
    r"\\{0,7}[\"'`\])>(*:=|\t\n/?+!<-]",  # quotes, brackets, signs, line ends
    r"\\{1,7}n",  # a line end that is written out
    r"[,;.?] (?:it|that|use|try)|,\"(?!,)",  # ... and a field of CSV
    r"[ \t]{1,24}(?:[:=|(\[\"'`\\?+<\u2502\u2192-]|(?:is|was|set|or|\u00e9|\u00e8) )",
    r"(?:[ \t][\w.-]{1,40}){0,3}[ \t]<<<",
    r"\[\d{0,5}\]",
    r"[ \t]{1,24}(?:[05789]|51:b:|ascii-text) ",  # a router's: password 7 0822455D0A16
    r"[ \t]{1,24}(?:(?=\S{0,40}[\d!@#%^&*])\S{6}|\S{12}|-{1,2}[a-z])",  # a value, or a flag
    SAID,
    SAID_OF,
    rf"[ \t]{_LINK}",
    rf"(?:[ \t]{_SAID_WORD}){{0,6}}? it(?:['\u2019]?s| is) ",
    _CJK,
)
TAIL = (
    rf"(?:[_-]?(?:{_SUFFIX}))?(?P<more>(?:_[a-z0-9]{{1,16}}){{1,3}})?(?![a-z0-9_])"
    rf"(?={'|'.join(_MAY_BEGIN)})"
)
NEXT_LETTERS = frozenset(
    " \t\n\r_-0123456789\\\"'`])[>(*:=|,/?+!<.;bhpdslmvtcr"
    "\u2502\u662f\u4e3a\u70ba\u306f\ub294\uc740\uff1a"
)

_VALUE_WORD = (
    "(?:value|val|default|defaultvalue|default_value|default-value|data|secretvalue|stringvalue"
    "|string_value|content|text|sensitive_value)"
)
_FLAG_WORD = "(?:body|value|secret-string|data|plaintext|content|b|v)"
_TYPE = (  # of a declaration: `name: &'a Option<String> =`, `name: str | None =`
    r":[ \t]{0,4}&?'?[a-z_][\w.]{0,24}(?:[ \t][a-z_]\w{0,20})?"
    r"(?:[\[<][^\]>\n=]{0,30}[\]>])?(?:[ \t]?\|[ \t]?[a-z]{2,10})?\??[ \t]{1,3}=(?![=>])"
)
_SIGN = r":=|\u2192|\*\*:|:\*\*|\?\??=|\+=|=>|={1,3}(?!>)|<-|->|:(?![:/])|!="

# Tried in this order; the name of a part says how the value is read (core/secret_names.py).
_PARTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "pair",  # name and value are two fields of one object
        (
            # {"name": "DB_PASSWORD", "value": "..."}, - name: DB_PASSWORD / value: ..., <add
            # key="Password" value="..."/>
            (
                rf"(?:{_Q})?\s{{0,4}}(?:,|\n|;|\)|(?<=[\"'`])\s)\s{{0,40}}(?:{_Q}|[-@.]"
                rf" ?)?{_VALUE_WORD}(?:{_Q})?\s{{0,4}}(?:=>|[:=])\s{{0,4}}"
            ),
            # gh secret set TOKEN --body "...", --name db-password --value ..., -b"..."
            r"[ \t]{1,4}(?:[-/][\w-]{1,20}[ \t][\w./-]{1,40}[ \t]{1,4}){0,3}"
            rf"(?:-{{1,2}}{_FLAG_WORD}|/[dv])(?:[ \t]{{1,4}}|=|(?={_Q}))",
            # vercel env add TOKEN production <<< ...
            r"(?:[ \t][\w.-]{1,40}){0,3}[ \t]<<<[ \t]?",
            # variable "db_password" { default = "..." }, "db_password": {"sensitive": true,
            # "value": "..."}
            rf"{_Q}\s{{0,4}}\{{[^{{}}\"']{{0,200}}?default\s{{0,8}}=\s{{0,8}}",
            rf"{_Q}\s{{0,4}}:\s{{0,4}}\{{[^{{}}]{{0,200}}?{_Q}{_VALUE_WORD}{_Q}\s{{0,4}}:\s{{0,4}}",
        ),
    ),
    (
        "xml",
        (
            # <password>...</password>, <string name="token">...</string>, <!--[CDATA[
            rf"(?:(?:{_Q})?(?:\s{{1,4}}[\w:.-]{{1,20}}=[\"'][^\"'<>\n]{{0,120}}[\"']){{0,2}}\s{{0,2}})?>\s{{0,40}}(?:<!\[cdata\[|<value[^<>\n]{{0,40}}>\s{{0,8}})?",
            # Password: <b>...</b>
            r"[ \t]{0,2}:[ \t]{0,4}<(?:b|strong|code|kbd|tt|em|i|pre|td|dd)(?:\s[^<>\n]{0,80})?>",
            # <key>token</key><string>..., <td>token</td><td>...
            r"</(?:key|name|td|th|dt|b|code|strong)>:?\s{0,40}<(?:string|value|td|dd|code|data)[^<>\n]{0,40}>",
        ),
    ),
    (
        # getenv("TOKEN") || "...", process.env.TOKEN ?? '...', ENV.fetch("TOKEN") { "..." }
        "fallback",
        (
            rf"(?:{_Q})?[\])]{{0,2}}[ \t]{{1,4}}(?:\|\||\?\?|\?:|or)[ \t]{{1,4}}(?={_Q})",
            rf"{_Q}\)\s{{0,2}}\{{\s{{0,2}}(?={_Q})",
        ),
    ),
    (
        "call",
        (
            rf"(?:{_Q}\s{{0,4}})?,\s{{0,40}}(?=[xn]?{_Q})",  # "password", "..."
            # auth=("name", "...")
            (
                r"(?:[ \t]{0,2}=["
                rf" \t]{{0,2}})?\(\s{{0,4}}{_Q}[^\"'`\n]{{1,64}}{_Q}\s{{0,4}},\s{{0,4}}(?={_Q})"
            ),
            # password("..."), setPassword(QString("..."))
            rf"\(\s{{0,2}}(?={_Q}|[\w:.]{{0,24}}(?:string|str|literal|bytes|text)\({_Q})",
        ),
    ),
    (
        "form",  # a part of a form: name="password", an empty line, the value
        (rf"{_Q}(?:;[^\n]{{0,80}})?\r?\n(?:content-type:[^\n]{{0,60}}\n)?\r?\n(?=\S)",),
    ),
    (
        # name = value, "name": value, ["name"] = value, name: str = value, name := value, name
        # [none]: value
        "assign",
        (
            rf"(?:{_Q})?[\])]?(?:\[\d{{0,5}}\])?(?:[ \t]\[[^\]\n]{{0,40}}\])?"
            rf"[ \t]{{0,24}}(?:{_TYPE}|{_SIGN})[ \t]{{0,24}}(?:{_LINE}(?={_Q}|string\())?",
        ),
    ),
    ("level", (r"[ \t](?:[05789]|51:b:|ascii-text|hexadecimal|clear)(?:[ \t]|(?<=b:))(?=\S)",)),
    ("table", (r"[ \t]{0,24}(?:\||\u2502)[ \t]{0,24}|\t{1,4}|[ ]{3,40}",)),
    (
        "said",
        (
            rf"(?:{_Q})?[ \t](?:is|was|=|set to|\u00e9|ist|est|es|\u2014)[: ][ \t]?"
            r"(?!(?:generated|created|shown|printed|stored|set) (?:for|to|as|by|below))",
            _ANSWERS,
            rf"{SAID}\s{{0,6}}",
            SAID_OF,
            _CJK,
        ),
    ),
    (
        "file",
        (r"(?:\.(?:txt|key|secret|pem))?[ \t]{0,4}\r?\n(?=[^\s]{16,200}[ \t]{0,4}(?:\r?\n|\Z))",),
    ),  # cat token.txt, and what it printed
    ("space", (r"(?:\\?\n)?[ \t]{1,8}",)),
)
GLUE = re.compile("|".join(f"(?P<{name}>{'|'.join(patterns)})" for name, patterns in _PARTS))

# --- The value: in quotes, which may stand in a call or behind a letter that marks a kind of
# literal ...
_PASSED_ON = (
    "secretstr|secret|string|str|bytes|some|from|text|new|sensitive|ok|of|literal|trim|quote|arc"
    "|box"
)
OPEN = re.compile(
    r"(?:[brufnx@$]{1,2}(?=[\\\"'])"
    rf"|[\w.:]{{0,30}}(?:{_PASSED_ON})(?:::new|::from)?\(\s{{0,2}}"
    r"|string\(\d{1,4}\)\s{0,2}"
    # codes of letters, decoded before
    r"|(?:new )?(?:\[\]byte|byte\[\]|vec!|(?:uint8)?array\()\s?(?=[\"'])"
    r"|[\[(]\s{0,40}(?=[\\\"']))?(\\{0,7})(?:\"\"(?=\")|''(?='))?([\"'`])",
    re.IGNORECASE,
)
# ... a quote may stand in it doubled, as in CSV ...
_DOUBLED = {'"': r'(?:""[^"\n\\]{1,200}){0,4}', "'": r"(?:''[^'\n\\]{1,200}){0,4}", "`": ""}
INSIDE = {
    q: re.compile(
        rf"([^{q}\n\\]{{1,300}}(?:\\[^{q}nrt\\\n][^{q}\n\\]{{0,200}}){{0,8}}{_DOUBLED[q]})\\{{0,7}}{q}"
    )
    for q in "\"'`"
}
# ... long, where it has no blanks, or with quotes and backslashes of its own, as JSON in JSON in
# JSON writes them ...
MAX_BACKSLASHES = 7
ESCAPED = {
    (q, n): re.compile(
        rf"((?:[^{q}\n\\\s]{{1,6000}}+|\\{{{n + 1},15}}+(?![nrt])[^\n\s]){{1,40}}+)\\{{{n}}}{q}"
    )
    for q in "\"'`"
    for n in range(MAX_BACKSLASHES + 1)
}
# ... or bare, up to a blank, a quote or a bracket of any script.
BARE = re.compile(r"[^\s\"'`<>\\|\u2502\x00-\x1f\u300d\u300f\u201d\u3002\uff0c\uff1b\uff09]{4,200}")
