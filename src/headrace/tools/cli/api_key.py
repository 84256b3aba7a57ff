"""The API key for a server that `--url` names, and the certificates to trust."""

from collections.abc import Mapping

from headrace.platform.host.folders import DataFolder, local_key_for
from headrace.serving.settings.platform_settings import data_folder, load_platform_settings


def api_key_for(url: str | None, given: str | None, env: Mapping[str, str]) -> str | None:
    """
    Return the key that was given, or the secret for a URL of a platform.

    It is the platform that `headrace env` points this shell at, or that runs on the data folder.
    """
    platform = env.get("AWS_ENDPOINT_URL", "").rstrip("/")
    if given or url is None:
        return given
    if platform and _is_below(url, platform) and env.get("AWS_SECRET_ACCESS_KEY"):
        return env["AWS_SECRET_ACCESS_KEY"]
    key = local_key_for(url, _default_folder(env))
    return key.secret if key is not None else None


def ca_bundle_for(url: str, env: Mapping[str, str]) -> str | None:
    """
    Return the certificates to trust for an address besides the system's, as the commands for a platform do.

    They are the certificate of the platform on this machine, if the address is its own and the certificate is
    self-signed; else those of AWS_CA_BUNDLE.
    """
    if not url.startswith("https://"):
        return None
    here = _default_folder(env).running_address()
    if here is not None and here.ca_bundle is not None and _is_below(url, here.url):
        return here.ca_bundle
    return env.get("AWS_CA_BUNDLE") or None


def _default_folder(env: Mapping[str, str]) -> DataFolder:
    return DataFolder(data_folder(load_platform_settings({}, env), env))


def _is_below(url: str, address: str) -> bool:
    return f"{url}/".startswith(f"{address}/")
