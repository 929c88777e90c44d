"""What each reason and category means, in one plain sentence; a name that is not listed here is
shown as it is."""

from __future__ import annotations

CATEGORIES = {
    "mistake": "the model's own mistake; trained on where it has a hint",
    "recovery": "the turn after an error, asked for by sites.site = recovery",
    "failed_check": (
        "a correct call whose test, lint or build failed: evidence about an earlier edit, no"
        " mistake of this message"
    ),
    "rejected": "a person refused the call",
    "interrupted": "a person stopped the agent",
    "sibling": "cancelled because another call of the same message failed",
    "permission": "a permission rule stopped the call",
    "environment": "the world failed (network, rate limit), not the model",
    "benign": "an answer that reads like an error and is none (for example: no match)",
}

# Kinds that stand apart for a reason of their own.
KINDS_APART = {
    "path_explored": (
        "looked for a path that is not there: a sound question whose answer is no"
        " (sites.explored_paths trains on it)"
    ),
}

# Reasons of skipped.jsonl as "channel/reason".
REASONS = {
    "session/held_out": "kept out of training for evaluation",
    "hint/no_hint": "no writer had anything to say that was known before the message",
    "hint/weak_hint": (
        "`hints --audit` measured no lift for this kind of hint: it does not change the model"
    ),
    "hint/author": "written by a model that build.authors leaves out",
    "hint/copied": "stands in an earlier session as well; trained there once",
    "hint/category": "not a mistake of the model",
    "hint/too_long": "does not fit into build.max_tokens; nothing is cut to fit",
    "hint/evidence_lost": (
        "its window would lose a turn that the hint or the call refers to; a larger"
        " build.max_tokens keeps it"
    ),
    "hint/template": "the chat template refused it",
    "hint/not_insertable": "the template has no place for a hint there",
    "hint/not_assistant": "not a message of a model",
    "hint/no_text_or_call": "the message holds neither text nor a call",
    "hint/no_session": "its session is not in sessions.jsonl",
    "hint/no_site": "the hint names no site",
    "hint/second_hint": "the site had a hint already",
    "lm_ce/author": "written by a model that build.authors leaves out",
    "lm_ce/copied": "stands in an earlier session as well; trained there once",
    "lm_ce/site": "a mistaken, rejected or unclassified message: never imitated",
    "lm_ce/interrupted": "a person stopped the agent in this message",
    "lm_ce/dispreferred": "the rejected side of a pair",
    "lm_ce/no_text_or_call": "the message holds neither text nor a call",
    "lm_ce/too_long": "does not fit into build.max_tokens; nothing is cut to fit",
    "lm_ce/template": "the chat template refused it",
    "preference/copied": "stands in an earlier session as well",
    "preference/not_assistant": "one side is not a message of a model",
    "preference/too_long": "does not fit into build.max_tokens; nothing is cut to fit",
    "preference/template": "the chat template refused it",
    "preference/no_session": "its session is not in sessions.jsonl",
    "content/thinking_left_out": "thinking in the log, for which the template has no place",
    "content/thinking_missing": "the template wants thinking, and the log holds none",
    "content/image": "pictures are not kept",
    "content/lone_surrogate": "damaged characters, replaced",
    "content/text_after_call": "text that stood behind a call, moved before it",
    "content/result_without_call": "a result whose call is not in the log",
    "content/empty_turn": "nothing of the turn could be rendered",
    "content/straddle": "a token that crosses the edge of a message; its message is not trained on",
    "preference/same_tokens": "both sides are the same tokens",
}

# What came of a turn that `replay` asked about, where that is not a pair.
ANSWERED = {
    "agreed": "others did the same: an anchor",
    "no_consensus": "others do not agree among themselves: an anchor",
    "outvoted": "most others did something else, too few for a pair",
    "chosen_fails": "others agree on an action that raises an error: no preference",
    "after_error": "the turn after an error, where the environment had already answered",
    "erred": "its own call raised an error: never an anchor",
    "too_few_families": "fewer than two families answered",
}

FLAT = "all rollouts of the group have the same reward: nothing to learn from their differences"

# What became of mistakes in rollouts that are not trained on, by the name of their metric.
UNUSED = {
    "without_hint": "no writer had anything to say that was known before the message",
    "refused": "a check refused the hint",
    "weak": "`hints --audit` measured no lift for this kind of hint",
    "no_donor": "the placebo found no other hint to put there",
    "not_drawn": "more than rollouts.hint_sites in one step",
    "not_built": "the template has no place for it, or it does not fit into a forward",
}

FILES = {
    "read": "read",
    "duplicate": "all of it stands in a file read before",
    "foreign": "not a log of a known agent",
    "damaged": "no readable record",
    "empty": "empty",
    "unreadable": "could not be opened",
    "refused": "over a size limit",
}

STATUSES = {
    "active": "tokens reached the loss and gave a gradient",
    "exhausted": "its producer found nothing to train on in this step",
    "starved": "there was input, but no token of it reached the loss",
    "dead": "tokens reached the loss, but gave no gradient",
    "off": "weight 0",
}

CHANNELS = {
    "policy": "reinforcement learning on rollouts",
    "lm_ce": (
        "cross-entropy on messages that were fine; written by another model, so this is imitation,"
        " not reinforcement"
    ),
    "hint": "pulled towards what the model itself says once it has read the hint",
    "preference": "DPO on pairs; this channel is in no Composer publication",
}
