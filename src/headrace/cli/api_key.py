"""The API key for a server that `--url` names."""

from collections.abc import Mapping


def api_key_for(url: str | None, given: str | None, env: Mapping[str, str]) -> str | None:
    """Return the key that was given; else, for the platform that `headrace env` points this shell at, its secret."""
    platform = env.get("AWS_ENDPOINT_URL", "").rstrip("/")
    is_platform = bool(platform) and f"{url}/".startswith(f"{platform}/")
    return given or (env.get("AWS_SECRET_ACCESS_KEY") if is_platform else None)
