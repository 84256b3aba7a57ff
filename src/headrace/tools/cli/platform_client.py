"""
The client side of a running platform: its address, and boto3 clients for its APIs.

The address comes, in this order, from `--url`, from `AWS_ENDPOINT_URL` (set by `headrace env`), from the data folder of
the running platform, or is the default port. The last is a guess, which commands say.
"""

import json
import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

import click

from headrace.serving.http.tls import client_context
from headrace.serving.settings.platform_settings import (
    DEFAULT_PORT,
    PlatformSettings,
    data_folder,
    load_platform_settings,
)
from headrace.tools.cli.group import Failed, UserFailed

if TYPE_CHECKING:
    from headrace.platform.host.folders import Address, DataFolder

_CLIENT_ERRORS = frozenset({"ValidationException", "ValidationError", "AccessDeniedException", "ResourceInUse"})
_KEY_ERRORS = frozenset(
    {"IncompleteSignature", "InvalidAccessKeyId", "InvalidClientTokenId", "InvalidSignatureException"}
    | {"MissingAuthenticationToken", "SignatureDoesNotMatch", "UnrecognizedClientException"}
)
_MAX_ANSWER_BYTES = 1 << 20
ANY_KEY = "headrace"
"""Key id and secret for an open platform, which accepts any."""


class NotTrusted(Failed):
    """The certificate of a platform is not accepted, which waiting does not change."""


@dataclass(frozen=True)
class Platform:
    """The address of a platform and the credentials to use."""

    url: str
    region: str
    access_key: str
    secret_key: str
    ca_bundle: str | None = None
    """Certificates to trust besides the system's; None: none, or those of AWS_CA_BUNDLE for boto3."""
    is_guessed: bool = False
    """The address is the default one: neither the caller nor a data folder named a platform."""
    option: str = ""
    """The option that names this platform in commands to copy; empty if they find it without one."""

    def __repr__(self) -> str:
        return f"Platform({self.url!r})"

    @property
    def has_credentials(self) -> bool:
        """False if only an open platform accepts the credentials."""
        return self.access_key != ANY_KEY

    def client(self, service: str, *, read_timeout_s: float = 60.0) -> Any:
        import boto3
        from botocore.config import Config

        self._tls()  # botocore reports a bundle that is missing as a certificate of the server
        once = {"mode": "standard", "total_max_attempts": 1}
        return boto3.session.Session().client(
            service,
            endpoint_url=self.url,
            region_name=self.region,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=Config(connect_timeout=5, read_timeout=read_timeout_s, retries=once, proxies={}),
            verify=self.ca_bundle,
        )

    @cached_property
    def sagemaker(self) -> Any:
        return self.client("sagemaker")

    def listed(self, operation: str, key: str, **only: str) -> list[dict[str, Any]]:
        """Return the items of all pages of a listing of SageMaker's, sorted by name."""
        pages = self.sagemaker.get_paginator(operation).paginate(SortBy="Name", SortOrder="Ascending", **only)
        return [item for page in pages for item in page[key]]

    def endpoint(self, name: str) -> dict[str, Any] | None:
        """Return the response of DescribeEndpoint, or None if there is no such endpoint."""
        return found(lambda: self.sagemaker.describe_endpoint(EndpointName=name))

    def component(self, name: str) -> dict[str, Any] | None:
        """Return the response of DescribeInferenceComponent, or None if there is no such component."""
        return found(lambda: self.sagemaker.describe_inference_component(InferenceComponentName=name))

    def component_names(self, endpoint: str | None = None) -> list[str]:
        """Return the names of the components of an endpoint, or of all endpoints."""
        only = {} if endpoint is None else {"EndpointNameEquals": endpoint}
        listed = self.listed("list_inference_components", "InferenceComponents", **only)
        return [component["InferenceComponentName"] for component in listed]

    def components(self, endpoint: str | None = None) -> list[dict[str, Any]]:
        """Return the descriptions of the components of an endpoint, or of all endpoints, sorted by name."""
        names = self.component_names(endpoint)
        return [component for name in names if (component := self.component(name)) is not None]

    def health(self) -> dict[str, Any]:
        """
        Return the platform's response to /health, also while it shuts down.

        Raises:
            Failed: no server listens at the address, or it is not a platform.
            SettingsError: AWS_CA_BUNDLE cannot be read.
        """
        try:
            value = self._get_json(Request(f"{self.url}/health"), timeout_s=5)  # noqa: S310 -- the user's URL
        except HTTPError as error:
            value = None
            if error.code == HTTPStatus.SERVICE_UNAVAILABLE:  # it may be shutting down
                with suppress(OSError, ValueError):
                    value = json.loads(error.read(_MAX_ANSWER_BYTES))
            if value is None:
                message = f"The server at {self.url} is not a platform (status {error.code} for /health)."
                raise Failed(message) from error
        except (URLError, OSError) as error:
            cause = error.reason if isinstance(error, URLError) else error
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise NotTrusted(not_trusted(self.url, cause.verify_message)) from error
            raise Failed(not_running(self.url)) from error
        except ValueError as error:
            raise Failed(f"The server at {self.url} is not a platform (/health is not JSON).") from error
        if not isinstance(value, dict) or value.get("service") != "headrace":
            raise Failed(f"The server at {self.url} is not a Headrace platform.")
        return value

    def machines(self) -> list[str]:
        """Return the machines of the platform, and which one leads; empty if it is on one machine or does not say."""
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials

        # Signed, as the secret may be one for AWS.
        signed = AWSRequest(method="GET", url=f"{self.url}/console/api/home")
        SigV4Auth(Credentials(self.access_key, self.secret_key), "sagemaker", self.region).add_auth(signed)
        request = Request(signed.url, headers=dict(signed.headers))  # noqa: S310 -- the user's URL
        try:
            found = self._get_json(request, timeout_s=5)["machines"]
            return [f"{machine['name']} (leads)" if machine["leads"] else str(machine["name"]) for machine in found]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def list_models(self, target: str, *, timeout_s: float, variant: str | None = None) -> list[dict[str, Any]]:
        """
        Return the models that the server of an endpoint or component lists; empty if it has no such list.

        The target is `NAME` or `NAME/inference-components/NAME`; an endpoint without an instance is started first.
        """
        url = f"{self.url}/endpoints/{quote(target)}/openai/v1/models"
        headers = {"Authorization": f"Bearer {self.secret_key}", "Prefer": "wait"}
        if variant:
            headers["X-Amzn-SageMaker-Target-Variant"] = variant
        request = Request(url, headers=headers)  # noqa: S310
        try:
            value = self._get_json(request, timeout_s=timeout_s)
        except (OSError, ValueError):
            return []
        models = value.get("data") if isinstance(value, dict) else None
        return [model for model in models if isinstance(model, dict)] if isinstance(models, list) else []

    def _get_json(self, request: Request, *, timeout_s: float) -> Any:
        opener = build_opener(ProxyHandler({}), HTTPSHandler(context=self._tls()))
        with opener.open(request, timeout=timeout_s) as response:
            return json.loads(response.read(_MAX_ANSWER_BYTES))

    def _tls(self) -> ssl.SSLContext | None:
        return client_context(self.ca_bundle) if self.url.startswith("https://") else None


def not_trusted(url: str, reason: str) -> str:
    return (
        f"The certificate of {url} is not accepted: {reason}. Use a name that it was issued for "
        "(--url https://NAME:PORT), and set AWS_CA_BUNDLE to the file of its root certificate if it has a root of "
        "its own."
    )


def not_running(url: str) -> str:
    return f"No platform is running at {url}. Start one with `headrace up`, or name another with --url."


def find_platform(url: str | None, env: Mapping[str, str] = os.environ) -> Platform:
    """
    Return the platform that a command is for. Only a guessed one is contacted, and named on stderr.

    Raises:
        UserFailed: the address is not a URL.
        Failed: the address was guessed, and no platform answers there.
    """
    from headrace.platform.host.folders import Address, DataFolder

    source = "--url"
    if url is None:
        source = "AWS_ENDPOINT_URL_SAGEMAKER" if env.get("AWS_ENDPOINT_URL_SAGEMAKER") else "AWS_ENDPOINT_URL"
        url = env.get(source)
    settings = load_platform_settings({}, env)
    folder = DataFolder(data_folder(settings, env))
    here = folder.running_address()
    if url:
        named = Address(url=_checked_url(url, source))
        platform = platform_at(here if here is not None and here.url == named.url else named, folder, env, settings)
        return replace(platform, option=f" --url {named.url}" if source == "--url" else "")
    if here is not None:
        return platform_at(here, folder, env, settings)
    default = Address(url=f"http://127.0.0.1:{settings.port or DEFAULT_PORT}")
    guessed = replace(platform_at(default, folder, env, settings), is_guessed=True)
    guessed.health()
    click.echo(f"Using the platform at {guessed.url}, the default address; --url names another.", err=True)
    return guessed


def platform_at(
    address: "Address",
    folder: "DataFolder",
    env: Mapping[str, str] = os.environ,
    settings: PlatformSettings | None = None,
) -> Platform:
    """
    Return the platform at an address, such as the one that a data folder names, with credentials for it.

    They are those of a shell that points at it, else the key of the data folder on which it runs, else the shell's,
    which may be for AWS.
    """
    from headrace.platform.host.folders import LocalKey, local_key_for

    settings = settings or load_platform_settings({}, env)
    key_id, secret = env.get("AWS_ACCESS_KEY_ID"), env.get("AWS_SECRET_ACCESS_KEY")
    key = LocalKey(key_id=key_id, secret=secret) if key_id and secret else None
    pointed_at = env.get("AWS_ENDPOINT_URL_SAGEMAKER") or env.get("AWS_ENDPOINT_URL") or ""
    if key is None or pointed_at.rstrip("/") != address.url:
        key = local_key_for(address.url, folder) or key
    return Platform(
        url=address.url,
        region=env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or settings.region,
        access_key=key.key_id if key is not None else ANY_KEY,
        secret_key=key.secret if key is not None else ANY_KEY,
        ca_bundle=address.ca_bundle or env.get("AWS_CA_BUNDLE"),
    )


def _checked_url(url: str, source: str) -> str:
    """Return a URL without a slash at its end; raises `UserFailed` for another text."""
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_url = False
    if not is_url:
        raise UserFailed(
            f"{source} is {url!r}; expected the URL of a platform such as http://127.0.0.1:{DEFAULT_PORT}."
        )
    return url.rstrip("/")


platform_option = click.option(
    "--url",
    metavar="URL",
    help="Address of the platform.  [default: AWS_ENDPOINT_URL, else the platform on this machine]",
)


data_dir_option = click.option(
    "--data-dir",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="The platform's data folder.  [default: `headrace` in the user's data folder]",
)


@contextmanager
def translate_errors() -> Iterator[None]:
    """Translate boto3's errors to messages of one sentence."""
    from botocore.exceptions import BotoCoreError, ClientError, EndpointConnectionError, HTTPClientError, SSLError

    from headrace.serving.wire.aws.signature_faults import KEY_HINT

    try:
        yield
    except EndpointConnectionError as error:
        raise Failed(not_running(str(error.kwargs.get("endpoint_url", "its address")))) from error
    except SSLError as error:
        url, cause = str(error.kwargs.get("endpoint_url", "its address")), error.kwargs.get("error")
        cause = cause.args[0] if isinstance(cause, Exception) and cause.args else cause  # urllib3 wraps it
        reason = cause.verify_message if isinstance(cause, ssl.SSLCertVerificationError) else str(cause)
        raise Failed(not_trusted(url, reason)) from error
    except ClientError as error:
        code, message = error_of(error)
        if code in _KEY_ERRORS:
            hint = (
                'The platform requires an access key: eval "$(headrace env)" takes that of its data folder, '
                "whose keys `headrace keys ls` lists; --data-dir names another folder than the default one."
            )
            raise UserFailed(f"{message.removesuffix(KEY_HINT).strip().rstrip('.')}. {hint}") from error
        if code.isdigit():  # the response has not the form of AWS's
            raise Failed(
                f"The server answered {error.operation_name} with HTTP {code}, so it is not a platform. Expected the "
                "address of `headrace up` in --url or AWS_ENDPOINT_URL; for a model server use `headrace chat --url` "
                "or `headrace generate --url`."
            ) from error
        raise (UserFailed if code in _CLIENT_ERRORS else Failed)(message) from error
    except (HTTPClientError, BotoCoreError) as error:
        raise Failed(str(error)) from error


@contextmanager
def opened_platform(url: str | None) -> Iterator[Platform]:
    """Yield the platform that a command is for, see `find_platform`, and translate boto3's errors in the block."""
    platform = find_platform(url)
    with translate_errors():
        yield platform


def error_of(error: Exception) -> tuple[str, str]:
    response: dict[str, Any] = getattr(error, "response", {})
    detail = response.get("Error", {})
    return str(detail.get("Code", "")), str(detail.get("Message") or error)


def found(call: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    """Return the response of a call of SageMaker's, or None if the resource does not exist."""
    from botocore.exceptions import ClientError

    try:
        return call()
    except ClientError as error:
        code, message = error_of(error)
        if code == "ValidationException" and "Could not find" in message:
            return None
        raise


def unknown_name(name: str) -> UserFailed:
    """Return the error for a name that neither an endpoint nor a component has."""
    return UserFailed(f"There is no endpoint or inference component called {name}. `headrace ls` lists them.")
