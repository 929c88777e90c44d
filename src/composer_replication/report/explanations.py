"""One sentence for each reason and category; a name that is not listed here is shown unchanged."""

from __future__ import annotations

CATEGORIES = {
    "mistake": "a mistake of the model; trained on if it has a hint",
    "recovery": "the turn after an error, asked for by sites.site = recovery",
    "failed_check": (
        "a correct call that reported a failure (of a test, a lint, a build, a command or git):"
        " it may tell of an earlier edit, but is no mistake of this message"
    ),
    "rejected": "a person refused the call",
    "interrupted": "a person stopped the agent",
    "sibling": "cancelled because another call of the same message failed",
    "permission": "a permission rule stopped the call",
    "environment": "the environment failed (network, rate limit), not the model",
    "benign": "an answer that looks like an error but is not one (for example: no match)",
    "corrected": "the person's next message said that it was wrong",
    "undone": "an edit that was taken back later",
    "blamed": "an edit after which a test, lint or build failed at its lines",
    "wasted": "a reading or command that could bring nothing new",
}

# Kinds whose reason differs from that of their category.
KINDS_APART = {
    "path_explored": (
        "looked for a path that does not exist: a legitimate question whose answer is no"
        " (sites.explored_paths trains on it)"
    ),
    "shell_requoted": "the agent program changed the quotes of the command; the model's were right",
}

# Reasons of skipped.jsonl as "channel/reason".
REASONS = {
    "session/held_out": "kept out of training for evaluation",
    "hint/no_hint": "no writer knew anything useful before the message",
    "hint/weak_hint": (
        "`hints --audit` measured no lift for this kind of hint: it does not change the model"
    ),
    "hint/unmeasured_hint": (
        "nothing is known to be right there, so `hints --audit` cannot measure the hint;"
        ' hints.unmeasured = "keep" uses it'
    ),
    "hint/author": "written by a model that build.authors leaves out",
    "hint/copied": "also in an earlier session; trained on there, once",
    "hint/category": "not a mistake of the model",
    "hint/too_long": "does not fit into build.max_tokens; nothing is cut to fit",
    "hint/evidence_lost": (
        "its window would lose a turn to which the hint or the call refers; a larger"
        " build.max_tokens keeps it"
    ),
    "hint/template": "the chat template refused it",
    "hint/not_insertable": "the template cannot hold a hint there",
    "hint/not_assistant": "not a message of a model",
    "hint/no_text_or_call": "the message holds neither text nor a call",
    "hint/no_session": "its session is not in sessions.jsonl",
    "hint/no_site": "the hint names a site that does not exist",
    "hint/second_hint": "the site already has a hint",
    "lm_ce/author": "written by a model that build.authors leaves out",
    "lm_ce/copied": "also in an earlier session; trained on there, once",
    "lm_ce/site": "a mistaken, rejected or unclassified message: never imitated",
    "lm_ce/interrupted": "a person stopped the agent in this message",
    "lm_ce/dispreferred": "the rejected side of a pair",
    "lm_ce/no_text_or_call": "the message holds neither text nor a call",
    "lm_ce/too_long": "does not fit into build.max_tokens; nothing is cut to fit",
    "lm_ce/template": "the chat template refused it",
    "preference/copied": "also in an earlier session",
    "preference/not_assistant": "one side was not written by a model",
    "preference/too_long": "does not fit into build.max_tokens; nothing is cut to fit",
    "preference/template": "the chat template refused it",
    "preference/no_session": "its session is not in sessions.jsonl",
    "content/lost_calls": "messages with calls that the chat template refused",
    "content/thinking_left_out": "thinking in the log, which the template cannot hold",
    "content/thinking_missing": "the template requires thinking, and the log holds none",
    "content/image": "images are not kept",
    "content/lone_surrogate": "damaged characters, replaced",
    "content/text_after_call": "text after a call, moved before it",
    "content/result_without_call": "a result whose call is not in the log",
    "content/parallel_calls": "several calls of one message: the template writes one a message",
    "content/leading_space": "the template strips the blanks that begin a text",
    "content/empty_turn": "nothing of the turn could be rendered",
    "content/straddle": "a message that begins with a line break: encoded in one go, it would share"
    " a token with its header; it is trained on, in the tokens in which it is sampled",
    "preference/same_tokens": "both sides are the same tokens",
    "anchor/second_anchor": "the message is an anchor already",
    "anchor/not_assistant": "not a message of a model",
    "anchor/no_session": "its session is not in sessions.jsonl",
}
# A message that is not imitated is no anchor either, for the same reason.
REASONS |= {
    name.replace("lm_ce/", "anchor/"): text
    for name, text in REASONS.items()
    if name.startswith("lm_ce/")
}


def why_left_out(name: str) -> str:
    """What a reason of skipped.jsonl says, in words.

    >>> why_left_out("content/opaque:redacted_thinking")
    'a part of the log that cannot be read: redacted_thinking'
    """
    channel_reason, _, kind = name.partition(":")
    if channel_reason == "content/opaque":
        return f"a part of the log that cannot be read: {kind}"
    return REASONS.get(name, "")


# What came of a turn that `replay` went over: as a sentence, and in a few words.
ANSWERED = {
    "pair": "others agree on another action: a preference",
    "agreed": "others did the same: an anchor",
    "no_consensus": "others do not agree among themselves: an anchor",
    "outvoted": "most others did something else, too few for a pair",
    "chosen_fails": "others agree on an action that raises an error here: no preference",
    "no_evidence": "others agree, and nothing but their agreement speaks for it",
    "after_error": "the turn after an error, to which the environment had already replied",
    "erred": "its own call raised an error: never an anchor",
    "too_few_families": "fewer than two families answered",
    "no_judge": "only a judge could tell, and none may be asked here",
    "not_asked": "nobody was asked about it",
    "copied": "also in another session",
    "interrupted": "a person interrupted it",
    "no_text_or_call": "it holds neither text nor a call",
    "no result": "neither a pair nor an anchor; the replay of this folder did not record why",
}
ANSWERED_SHORT = {
    "pair": "others agree on something else",
    "agreed": "others did the same",
    "no_consensus": "no two agree",
    "outvoted": "outvoted, too few for a pair",
    "chosen_fails": "what others agree on fails",
    "no_evidence": "nothing but agreement",
    "after_error": "after an error",
    "erred": "its own call failed",
    "too_few_families": "too few families",
    "no_judge": "no judge may be asked",
}

# Why a usable answer has no vote.
NO_VOTES = {
    "own_family": "no vote: the family that wrote the log",
    "divided": "no vote: its family gave another action as often or more often",
    "no_action": "no vote: neither text nor a call",
    "not_weighed": "not weighed: nothing to compare it with",
    "unsure": "no vote: less certain than replay.min_confidence",
    "not_recorded": "the replay of this folder did not record who voted",
}

# What `curate` did with a pair; another text is the reason for which it dropped it.
CURATED = {"kept": "Kept by recompose curate.", "": "Not curated yet."}

# Why an answer cannot be used; "curate: ..." is the recipe's own reason.
PROBLEMS = {
    "cut_off": "it ends at the limit of tokens",
    "empty": "it holds neither text nor a call",
    "refused": "the model refused to answer",
    "bad_arguments": "arguments of a call are not JSON",
    "unknown_tool": "it calls a tool that is not on offer",
    "no_name": "a call without a tool's name",
}

FLAT = "all rollouts of the group have the same reward: nothing to learn from their differences"

# Why a mistake in a rollout is not trained on, by the name of the metric that counts it.
UNUSED = {
    "without_hint": "no writer knew anything useful before the message",
    "refused": "a check refused the hint",
    "weak": "`hints --audit` measured no lift for this kind of hint",
    "no_donor": "the placebo found no other hint for it",
    "not_drawn": "over the limit rollouts.hint_sites of one step",
    "not_built": "the template cannot hold the hint, or the tokens do not fit into a forward pass",
}

FILES = {
    "read": "read",
    "duplicate": "entirely contained in another file",
    "foreign": "not a log of a known agent",
    "damaged": "no readable record",
    "empty": "empty",
    "unreadable": "could not be opened",
    "refused": "over a size limit",
}

STATUSES = {
    "active": "tokens reached the loss and gave a gradient",
    "exhausted": "its source had nothing to train on in this step",
    "starved": "there was input, but no token of it reached the loss",
    "dead": "tokens reached the loss, but gave no gradient",
    "off": "weight 0",
}

CHANNELS = {
    "policy": "reinforcement learning on rollouts",
    "lm_ce": (
        "cross-entropy on correct messages; another model wrote them, so this is imitation, not"
        " reinforcement"
    ),
    "hint": "distillation towards the same model with the hint in its context",
    "preference": "DPO on pairs; this channel is in no Composer publication",
}
