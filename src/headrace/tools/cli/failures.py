"""Text for people about a `FailureReason`, which opens with the general sentence of AWS. Pure."""

_CAUSE = " Reason: "
_LOG = "\nIts log ("
_LOG_TAIL = " ends with:\n"


def cause_first(reason: str) -> str:
    """Return the cause that the worker gave, then the end of its log unless that only repeats the cause."""
    summary, _, log = reason.partition(_LOG)
    cause = summary.partition(_CAUSE)[2] or summary or "no reason given"
    lines = log.partition(_LOG_TAIL)[2].splitlines()
    if not lines or cause in lines[-1]:
        return cause
    return "\n".join([cause, "Its log ends with:", *(f"  {line}" for line in lines)])


def log_hint(name: str, reason: str, option: str = "") -> str:
    """Return a line that names the command for the logs; empty if no worker ran that has a log."""
    return f"\n`headrace logs {name}{option}` shows the logs of its workers." if _LOG in reason else ""
