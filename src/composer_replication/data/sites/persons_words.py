"""What a person's message about the last step means: a correction, a question, a pause, a wish.

The lists are short and anchored: a message counts as a correction only if its opening can hardly
mean anything else. Pasted text (logs, code, reports of other programs) is not the person's, and is
cut out first. English, German, French, Spanish, Portuguese, Japanese and Chinese.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from composer_replication.core.trace import HUMAN, Turn

Stance = Literal["correction", "prohibition", "instead", "question", "pause", "wish"]
SPOKEN = "the user said:"
OPENING_CHARS = 300
"""A correction stands at the beginning of a message; what follows may be about anything."""
MAX_CHARS = 1500
"""A longer message is a task or a pasted text."""

_FENCE = re.compile(r"```.*?(?:```|\Z)|<(\w[\w-]*)>.*?</\1>", re.DOTALL)
_PASTED = re.compile(
    r"^\s*(?:[❯$>|+*#{}\[\]]|\d+[.):\s]|-{2,}|={3,}|at \S+\(|File \")|\t|\S{90,}|^\S+\.\w+:\d+"
)
_REPORT = re.compile(
    r"\b(?:Low|Medium|High|Critical) Severity\b|^Operation stopped by hook|^Implement the following"
    r" plan|^The user wants to clarify",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.!?。！？])\s+|(?<=[。！？])|\n+")

_PAUSE = re.compile(
    r"^(?:(?:oh|ah|ok(?:ay)?|hm+|um+|uh),? )*(?:wait|hold on|hang on|pause\b|let'?s (?:pause|talk|"
    r"discuss)|sorry\b|never ?mind|my (?:bad|mistake)|i was (?:wrong|mistaken)|i changed my mind|on"
    r" second thou?ght|i'?ll (?:take|do|let)|continue\b|go on\b|entschuldigung|moment mal|warte"
    r"|attends|pardon|espera|perd[oó]n|desculpa|待って|すみません|等等|等一下|抱歉)",
    re.IGNORECASE,
)
_APPROVES = re.compile(
    r"^(?:no|nope),? (?:problem|worries|need|rush|that'?s (?:ok|fine|good|great)|it'?s (?:ok|fine|"
    r"good)|(?:then )?(?:it'?s|that'?s) (?:ok|fine|good)|all good|nothing|go ahead|just|i (?:don'?t"
    r" (?:think|know)|haven'?t)|we|let'?s|then)\b",
    re.IGNORECASE,
)
_CORRECTS = re.compile(
    r"^(?:no|nope|nah)[,.!:—-]+ ?\S"
    r"|\b(?:that|this|it|which|the (?:first|second|last|other) (?:part|one))(?:'s| is| was)"
    r" (?:still |also |just |simply |clearly |again )*(?:not (?:correct|right|true|what i|how i)|"
    r"wrong\b|incorrect\b)"
    r"|^(?:again,? )?(?:this|that)(?:'s| is) (?:not|wrong)\b(?! working| clear| possible| urgent)"
    r"|^(?:wrong|incorrect|not (?:correct|right|quite|what i))\b"
    r"|\byou(?:'ve| have)? (?:just )?(?:broke|misunderst\w+|forgot\b|ignored|"
    r"made (?:it|that|this) up|invented|hallucinat\w+|shouldn'?t have|should not have|got (?:it|"
    r"this|that) wrong|were(?:n'?t| not) supposed)"
    r"|\bhave you made? it up\b|\bwhat are you doing\b"
    r"|^why (?:on earth |the hell )?(?:did|have|are|do) you (?:just )?(?:delet|remov|add|chang|"
    r"creat|commit|push|revert|mock|skip|disabl|ignor|run|us|edit|writ|stash)\w*"
    r"|^(?:but )?(?:as )?i (?:just |already |clearly |explicitly )*(?:said|told you|asked you)\b"
    r"|\bi (?:did not|didn'?t|never) (?:ask|say|said|want|mean|tell)\b"
    r"|\bnot what i (?:asked|meant|wanted|said)\b|^i meant\b"
    r"|^[^?]{0,80}\b(?:won'?t|will not) work\b"
    r"|\byou(?:'re| are) (?:not (?:correct|right)|wrong|incorrect|mistaken)\b"
    r"|^(?:please )?(?:revert|undo|roll ?back) (?:that|this|it|the|your|all|those|these|last)\b"
    r"|^not as an? [\w ]+, but\b|\bdon'?t be lazy\b|^too slow\b"
    # de, fr, es, pt
    r"|^nein[,.!]|\bdas (?:ist|war) (?:so )?(?:falsch|nicht (?:richtig|korrekt|was ich))|\bich"
    r" (?:habe? (?:doch )?gesagt|sagte doch)|^mach(?:e)? das (?:wieder )?rückgängig|^warum hast du"
    r"|^non[,.!] |\bc'est (?:faux|incorrect|pas (?:correct|ce que))|\bj'(?:ai|avais) (?:pourtant |"
    r"déjà )?dit\b|^annule (?:ça|cela|ce|tes)|^pourquoi (?:as-tu|tu as)"
    r"|\best[áa] mal\b|\beso no es (?:correcto|lo que)|^(?:ya )?te dije|^(?:deshaz|revierte) |^por"
    r" qu[eé] (?:has|borraste|hiciste|cambiaste)"
    r"|^não[,.!] |\best[áa] errado|^(?:eu )?(?:já )?(?:disse|falei) |^(?:desfaça|reverta) |^por que"
    r" você (?:apagou|removeu|mudou|fez)"
    # ja, zh
    r"|^(?:いや、|違う|違います|ちがう)|間違って(?:い|る)|間違いです|って言った(?:よね|のに|はず)"
    r"|^元に戻して|^(?:不对|不是这样|你?错了|这不对)|^(?:我说(?:的是|过|了))|^(?:撤销|回滚|恢复原)"
    r"|^(?:你为什么|为什么你)",
    re.IGNORECASE,
)
_FORBIDS = re.compile(
    r"^(?:please |pls |also |and |again,? |no,? )*(?:do not|don'?t|dont|never|stop \w+ing|no need"
    r" to|avoid)\b(?! (?:worry|forget|know|think|hesitate))"
    r"|\blet'?s (?:not|avoid)\b|\bI don'?t want\b|^(?:bitte )?(?:nicht|kein\w*) |^(?:ne|n')\w* .*"
    r"\bpas\b|^no (?:hagas|uses|borres|cambies|toques)\b|^não (?:faça|use|apague|mude|mexa)\b"
    r"|しないで|^(?:不要|别)",
    re.IGNORECASE,
)
_INSTEAD = re.compile(
    r"\binstead\b|\brather than\b|\bshould (?:also |rather |only )?(?:be|have|check|use|go|not)\b"
    r"|\bi(?:'d| would) (?:personally )?(?:prefer|rather|have thought|have expected)\b|\bprefer "
    r"|\bstatt(?:dessen)?\b|\bau lieu d|\bplutôt\b|\ben (?:vez|lugar) de\b|\bem vez d|ではなく|"
    r"じゃなくて|而不是|而是",
    re.IGNORECASE,
)
_UNDID = re.compile(
    r"^(?:ok(?:ay)?,? |no,? )?i(?:'ve| have)? (?:just )?(?:reverted|undid|undone|rolled back"
    r"|discarded) (?:all )?(?:of )?(?:your|the|these|those|that|this)\b"
    r"|^ich habe (?:deine|die) änderungen"
    r"|^j'ai annulé (?:tes|vos|les)\b|^he revertido|^reverti as\b|^我(?:已经)?(?:撤销|回滚)了",
    re.IGNORECASE,
)
_WHAT_WAS_UNDONE = re.compile(r"^(?: \w+){0,3}? (?:changes?|edits?|commits?|work)\b", re.IGNORECASE)
_ASKS = re.compile(r"[?？]\s*$|吗|ですか|ますか")


class Remark(NamedTuple):
    """What a person's words about a step are, and the words themselves, e.g.
    Remark("prohibition", "don't create a pr, just a commit")."""

    stance: Stance
    words: str


def typed_words(text: str) -> str:
    """The sentences that the person typed, without pasted code, logs and reports; "" if the message
    is one of these.

    >>> typed_words("wrong file\\n```\\nx = 1\\n```")
    'wrong file'
    """
    if len(text) > MAX_CHARS or _REPORT.search(text):
        return ""
    lines = _FENCE.sub("\n", text).splitlines()
    return "\n".join(line.strip() for line in lines if line.strip() and not _PASTED.search(line))


def remark_of(text: str) -> Remark | None:
    """Say what a person's words about the last step are; None if they typed none.

    A pause, an apology and an approval come first: "no, that's fine" is no correction, and "wait,
    don't do that yet" is a change of mind.

    >>> remark_of("no, that is the wrong file").stance, remark_of("can you sort them?").stance
    ('correction', 'question')
    """
    words = typed_words(text)
    if not words:
        return None
    opening = words[:OPENING_CHARS].replace("’", "'")
    sentences = [s.strip() for s in _SENTENCE.split(opening) if s and s.strip()][:2]
    if not sentences:
        return None
    if _PAUSE.search(sentences[0]):
        return Remark("pause", words)
    if _APPROVES.search(sentences[0]):
        return Remark("wish", words)
    if any(_CORRECTS.search(sentence) for sentence in sentences):
        return Remark("correction", words)
    if _FORBIDS.search(sentences[0]):
        return Remark("prohibition", words)
    if _ASKS.search(sentences[-1]) or _ASKS.search(sentences[0]):
        return Remark("question", words)
    if any(_INSTEAD.search(sentence) for sentence in sentences):
        return Remark("instead", words)
    return Remark("wish", words)


def spoken_in_result(text: str) -> str:
    """The person's words inside the result of a rejected call; "" if there are none.

    >>> spoken_in_result("The user doesn't want to proceed. ..., the user said:\\nuse make")
    'use make'
    """
    head, mark, words = text.partition(SPOKEN)
    if not mark or len(head) > 600:
        return ""
    return words.split("\n\nNote: The user's next message")[0].strip()


def undid_it(text: str) -> bool:
    """Whether a person says that they took back the model's changes by hand.

    >>> undid_it("I've reverted your changes - focus on the second"), undid_it("revert it")
    (True, False)
    """
    return _UNDID.search(typed_words(text)[:OPENING_CHARS].replace("’", "'")) is not None


def words_beside_undo(text: str) -> str:
    """What a person typed beside saying that they took the model's changes back.

    >>> words_beside_undo("I've reverted your changes - only the tests"), words_beside_undo("wrong")
    ('only the tests', 'wrong')
    """
    words = typed_words(text).replace("’", "'")
    rest = _UNDID.sub("", words)
    if rest != words:
        rest = _WHAT_WAS_UNDONE.sub("", rest)
    return rest.strip(" .,;:!–—-\n")


def is_typed(turn: Turn) -> bool:
    """Whether a person typed this message, and no hook of theirs."""
    return (
        turn.role == "user"
        and turn.author == HUMAN
        and not turn.text.startswith("Operation stopped by hook")
    )
