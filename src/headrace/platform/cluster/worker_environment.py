"""
The part of the platform's environment variables that its workers get.

Code in a worker belongs to its user, not to the platform. Only variables known to be harmless and needed are passed on;
the platform's credentials and settings are not.
"""

from collections.abc import Mapping
from typing import Final

from headrace.serving.http.otlp import SECRETS as EXPORT_SECRETS

_NAMES: Final = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR"),
        *("LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "OMP_WAIT_POLICY"),
        *("HEADRACE_HOME", "HEADRACE_CACHE_DIR", "HEADRACE_ISA"),
        *("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "HF_ENDPOINT"),
        *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_CONFIG_FILE"),
        *("PIP_CACHE_DIR", "PIP_CERT", "PIP_TRUSTED_HOST"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"),
        *EXPORT_SECRETS,
    )
)
_PREFIXES: Final = ("LC_", "XDG_", "CUDA_", "NVIDIA_")
_PROXIES: Final = frozenset({"http_proxy", "https_proxy", "no_proxy", "all_proxy"})


def worker_environment(platform: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a worker gets; it adds its own (`WorkerSpec.environment`) itself."""
    kept = {
        name: value
        for name, value in platform.items()
        if name in _NAMES or name.startswith(_PREFIXES) or name.lower() in _PROXIES
    }
    return kept | {"PYTHONUNBUFFERED": "1"}
