"""Whether the hub answers, and which files of it are on this machine: for verbs that only look.

    why_unreachable("Qwen/Qwen3-0.6B")    # "" or "https://huggingface.co did not answer within 5 s"
    kept_folder("Qwen/Qwen3-0.6B")        # the folder of its config.json here, or None

Libraries try again for more than a minute, which is right for a download and wrong for a look.
"""

from __future__ import annotations

import http.client
import ssl
import threading
import urllib.error
import urllib.request
from pathlib import Path

from composer_replication.core.errors import first_line, need

TIMEOUT_S = 5.0
HUB_FIX = (
    "give a local folder or a GGUF file; behind a proxy set HTTPS_PROXY, for a mirror HF_ENDPOINT;"
    " with HF_HUB_OFFLINE=1 only what is on this machine is used"
)


def why_unreachable(name: str, *, timeout_s: float = TIMEOUT_S) -> str:
    """Why the hub cannot be asked for a model: it is asked once; "" if it answers, or if
    HF_HUB_OFFLINE forbids to ask.

    An answer that refuses (404, 401) is one. So is a certificate that is not known: loading says
    more about it.
    """
    constants = need("huggingface_hub", extra="train").constants
    if is_offline():
        return ""
    hub, reasons = str(constants.ENDPOINT), list[str]()
    url = f"{hub}/{name}/resolve/main/config.json"
    # in a thread: looking up a host has no time limit of its own
    asking = threading.Thread(
        target=lambda: reasons.append(_ask(url, timeout_s=timeout_s)), daemon=True
    )
    asking.start()
    asking.join(timeout_s)
    reason = reasons[0] if reasons else f"no answer within {timeout_s:g} s"
    return f"the hub at {hub} cannot be reached: {reason}" if reason else ""


def _ask(url: str, *, timeout_s: float) -> str:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=timeout_s):
            return ""
    except urllib.error.HTTPError as error:
        return "" if error.code < 500 else f"it answers {error.code} {error.reason}"
    except (OSError, http.client.HTTPException) as error:
        cause = getattr(error, "reason", error)
        if isinstance(cause, ssl.SSLError):
            return ""
        return first_line(cause) if isinstance(cause, Exception) else str(cause)
    except ValueError as error:
        return first_line(error)


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE forbids to ask the hub."""
    return bool(need("huggingface_hub", extra="train").constants.HF_HUB_OFFLINE)


def kept_folder(name: str) -> Path | None:
    """The folder in which files of a hub's model are kept on this machine; None without its
    config.json. Nothing is asked."""
    hub = need("huggingface_hub", extra="train")
    try:
        found = hub.try_to_load_from_cache(name, "config.json")
    except ValueError:  # no name of a repository
        return None
    return Path(found).parent if isinstance(found, str) else None
