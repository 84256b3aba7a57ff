"""Bearer tokens as SageMaker's SDK makes them."""

import base64
from datetime import UTC, datetime

import pytest
from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from headrace.serving.wire.aws import bearer_tokens
from headrace.serving.wire.aws.errors import AwsError
from tests.serving.wire.aws.signing import ACCESS_KEY, SECRET, SECRETS


def made(*, service="sagemaker", action="CallWithBearerToken", expires=43_200, session=None):
    """A token and the time of its signature."""
    request = AWSRequest(
        method="POST",
        url="https://sagemaker.amazonaws.com/",
        headers={"host": "sagemaker.amazonaws.com"},
        params={"Action": action},
    )
    SigV4QueryAuth(Credentials(ACCESS_KEY, SECRET, session), service, "us-east-1", expires=expires).add_auth(request)
    stamp = request.url.partition("X-Amz-Date=")[2][:16]
    url = request.url.removeprefix("https://") + "&Version=1"
    signed_s = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
    return bearer_tokens.PREFIX + base64.b64encode(url.encode()).decode(), signed_s


@pytest.mark.parametrize("session", [None, "session/token=="])
def test_a_token_identifies_its_signer(session):
    token, signed_s = made(session=session)

    assert bearer_tokens.is_bearer_token(token)
    assert bearer_tokens.verify(token, SECRETS.get, signed_s + 43_200).access_key == ACCESS_KEY


@pytest.mark.parametrize(
    "options", [{"service": "bedrock"}, {"action": "ListModels"}, {"expires": 43_201}, {"expires": 604_800}]
)
def test_a_token_for_something_else_is_refused(options):
    token, signed_s = made(**options)

    with pytest.raises(AwsError):
        bearer_tokens.verify(token, SECRETS.get, signed_s)


def test_a_token_that_is_expired_or_of_another_key_is_refused():
    token, signed_s = made()

    for secrets, now_s in ((SECRETS, signed_s + 43_201), ({ACCESS_KEY: "other"}, signed_s), ({}, signed_s)):
        with pytest.raises(AwsError):
            bearer_tokens.verify(token, secrets.get, now_s)


@given(text=st.text(max_size=40) | st.binary(max_size=90).map(lambda data: base64.b64encode(data).decode()))
def test_a_malformed_token_is_refused(text):
    with pytest.raises(AwsError):
        bearer_tokens.verify(bearer_tokens.PREFIX + text, SECRETS.get, 0.0)
