"""Image profiles: the table in the docs, all URIs of the SageMaker SDK, and own images."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.platform.control.model.images import FAMILIES, SPLIT_VARIABLES, OwnImage, find_own, profile, split_image
from headrace.serving.settings.loading import load_settings
from headrace.serving.wire.aws.errors import AwsError
from headrace.serving.wire.registry import DIALECT_NAMES

ROOT = Path(__file__).parent.parent.parent.parent.parent
PAGE = ROOT / "docs" / "images.md"
SCRIPT = ROOT / "scripts" / "image_uris.py"
REGISTRY = "763104351884.dkr.ecr.us-east-1.amazonaws.com/"
TGI = f"{REGISTRY}huggingface-pytorch-tgi-inference:2.0.1-tgi1.0.3-gpu-py39-cu118-ubuntu20.04"
DJL = f"{REGISTRY}djl-inference:0.26.0-deepspeed0.12.6-cu121"


def of(image, environment=None, *, own_images=None, is_strict=False):
    return profile(image, environment or {}, own_images=own_images or {}, is_strict=is_strict)


def table():
    """The rows of the docs: an image, what it is taken for, its dialect."""
    return re.findall(r"^\| `([^`]+)` \| ([^|]+) \| `([^`]+)` \|$", PAGE.read_text(), re.MULTILINE)


@pytest.mark.parametrize(("image", "server", "dialect"), table())
@pytest.mark.parametrize("registry", ["", REGISTRY, "localhost:5000/", "public.ecr.aws/x1y2/"])
def test_the_table_of_the_docs_matches_the_profiles(image, server, dialect, registry):
    found = of(registry + image.removeprefix("ghcr.io/"), is_strict=True)
    family = next(family for family in FAMILIES if family.name == found.family)
    assert found.dialect == dialect
    assert found.options == {"dialect": dialect}
    assert found.command == ()
    assert server.split(",")[0].split()[0] in family.title.replace("Text Generation Inference", "TGI")


def test_the_table_of_the_docs_has_all_families_and_their_dialects():
    rows = {(of(image).family, dialect) for image, _, dialect in table()}
    assert rows == {(family.name, dialect) for family in FAMILIES for _, dialect in family.dialects if dialect}
    assert {dialect for _, dialect in rows} == set(DIALECT_NAMES)


@pytest.mark.parametrize(
    ("image", "family", "version"),
    [
        ("683313688378.dkr.ecr.us-east-1.amazonaws.com/sagemaker-scikit-learn:1.2-1-cpu-py3", "sklearn", "1.2"),
        ("683313688378.dkr.ecr.us-east-1.amazonaws.com/sagemaker-xgboost:3.0-5", "xgboost", "3.0"),
        ("811284229777.dkr.ecr.us-east-1.amazonaws.com/xgboost:1", "xgboost", ""),
    ],
)
def test_images_of_toolkits_run_code_and_have_no_dialect(image, family, version):
    found = of(image, is_strict=True)
    assert (found.family, found.version, found.dialect, found.options) == (family, version, "", {})
    assert found.family in {
        row for _, row in re.findall(r"^\| `([^`]+)` \| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    }


@pytest.mark.parametrize("dialect", DIALECT_NAMES)
def test_every_option_is_one_that_the_model_server_reads(dialect):
    found = next(found for image, _, _ in table() if (found := of(image, is_strict=True)).dialect == dialect)
    settings, notices = load_settings({"model": "echo", **found.options}, found.environment)
    assert settings.dialect == dialect
    assert settings.container
    assert {notice.kind for notice in notices} <= {"applied"}


def sdk_uris():
    """Framework, version and URI: what `scripts/image_uris.py` found in the SDK."""
    text = (Path(__file__).parent / "image_uris.txt").read_text()
    return [line.split() for line in text.splitlines() if line and not line.startswith("#")]


def expected_dialect(framework, version, uri):
    """Return the dialect by the containers' release notes, independently of the table of families."""
    if framework == "huggingface-llm":
        return "tgi-1.0" if version.startswith(("0.", "1.0", "1.1", "1.2", "1.3")) else "tgi-3"
    if framework.startswith("djl-"):
        lmi = re.search(r"lmi(\d+)", uri)
        if lmi:
            return "lmi-17" if int(lmi[1]) > 16 else "lmi-0.27"
        minor = int(version.split(".")[1])
        return {25: "lmi-0.25", 26: "lmi-0.26"}.get(minor, "lmi-0.25" if minor < 25 else "lmi-0.27")
    return {
        "huggingface": "hf-toolkit",
        "huggingface-llm-neuronx": "tgi-3",
        "huggingface-vllm-neuronx": "openai",
    }.get(framework, "torchserve")


def test_every_uri_of_the_sdk_for_language_models_is_known():
    assert len(sdk_uris()) > 150
    for framework, version, uri in sdk_uris():
        found = of(uri, is_strict=True)
        assert found.dialect == expected_dialect(framework, version, uri), uri
        if framework in {"huggingface-llm", "djl-deepspeed", "djl-tensorrtllm", "djl-fastertransformer"}:
            assert found.version == version, uri


@pytest.mark.skipif(importlib.util.find_spec("sagemaker") is None, reason="the SageMaker SDK is not installed")
def test_the_list_of_uris_is_that_of_the_sdk():
    done = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_unknown_image_gets_our_server_and_a_notice_or_is_refused():
    image = f"{REGISTRY}blazingtext:1"
    found = of(image, {"OPTION_MODEL_ID": "org/name"})
    assert (found.family, found.dialect, found.options) == ("unknown", "auto", {})
    assert image in found.notices[0]
    assert load_settings(found.options, found.environment)[0].dialect == "lmi-17"
    with pytest.raises(AwsError, match="not found") as caught:
        of(image, is_strict=True)
    assert caught.value.code == "ValidationException"
    assert image in caught.value.message


def test_a_tag_without_a_version_means_the_newest_with_a_notice():
    for image in ("ghcr.io/huggingface/text-generation-inference:latest", "djl-inference", "djl-inference:latest"):
        found = of(image)
        assert found.version == ""
        assert found.dialect in {"tgi-3", "lmi-17"}
        assert "does not say which version" in found.notices[0]


def test_the_environment_is_the_containers_own():
    given = {"HF_MODEL_ID": "org/name", "SM_NUM_GPUS": "1", "MAX_CONCURRENT_REQUESTS": "7"}
    found = of(TGI, given)
    assert found.environment == {**given, "HEADRACE_CONTAINER": "true"}
    assert found.notices == ()
    strict = of(TGI, given, is_strict=True).environment
    assert strict["MAX_CONCURRENT_REQUESTS"] == "7"
    assert strict["HEADRACE_EULA_CHECK"] == "gated"
    assert strict["MAX_BEST_OF"] == "2"


@pytest.mark.parametrize(
    "name", ["API_KEY", "SM_VLLM_API_KEY", "SM_SGLANG_API_KEY", "SM_LLAMA_CPP_API_KEY", "HEADRACE_API_KEY"]
)
def test_a_key_that_would_lock_the_gateway_out_is_dropped_with_a_notice(name):
    found = of(TGI, {name: "s3cret"})
    assert name not in found.environment
    assert found.notices == (f"{name} has no effect: only the platform reaches the container.",)


def test_the_dialect_of_the_environment_overrides_the_image():
    found = of(DJL, {"HEADRACE_DIALECT": "lmi-17"})
    assert (found.dialect, found.options) == ("lmi-17", {})
    assert load_settings({"model": "echo", **found.options}, found.environment)[0].dialect == "lmi-17"


def test_neuron_images_get_a_notice_about_compiled_weights():
    (notice,) = of(f"{REGISTRY}pytorch-inference-neuronx:1.13.1-neuronx-py310-sdk2.13.2-ubuntu20.04").notices
    assert "compiled for Neuron" in notice


@pytest.mark.parametrize(
    ("image", "repository", "tag"),
    [
        (DJL, "djl-inference", "0.26.0-deepspeed0.12.6-cu121"),
        ("djl-inference", "djl-inference", ""),
        ("localhost:5000/team/server:1", "team/server", "1"),
        ("localhost/server", "server", ""),
        ("vllm/vllm-openai:v0.6.3", "vllm/vllm-openai", "v0.6.3"),
        ("ghcr.io/a/b/c:x@sha256:00", "a/b/c", "x"),
        ("server@sha256:00", "server", ""),
        ("", "", ""),
    ],
)
def test_an_image_is_split_as_docker_does(image, repository, tag):
    assert split_image(image) == (repository, tag)


OWN = {
    "team/server": OwnImage(command=("serve", "{port}"), environment={"A": "1", "B": "2"}),
    "team/server:beta": OwnImage(command=("beta",)),
    "team/*": OwnImage(command=("team",)),
    "*": OwnImage(command=("any",)),
    "djl-inference:0.26.*": OwnImage(dialect="lmi-17", options={"dtype": "w8a8"}),
}


@pytest.mark.parametrize(
    ("image", "key"),
    [
        (f"{REGISTRY}team/server:1", "team/server"),
        (f"{REGISTRY}team/server:beta", "team/server:beta"),
        ("team/server@sha256:00", "team/server"),
        ("team/other", "team/*"),
        ("something/else", "*"),
        (DJL, "djl-inference:0.26.*"),
    ],
)
def test_the_most_specific_name_of_an_own_image_wins(image, key):
    assert find_own(image, OWN) is OWN[key]


def test_an_own_image_runs_its_command_in_the_environment_of_its_container():
    found = of("team/server:1", {"B": "3", "API_KEY": "k"}, own_images=OWN, is_strict=True)
    assert (found.family, found.command, found.dialect, found.options) == ("own", ("serve", "{port}"), "", {})
    assert found.environment == {"A": "1", "B": "3", "API_KEY": "k"}


@pytest.mark.parametrize("image", ["--privileged", "-v=/:/host", "a b", "a\n--privileged", "/x", "é"])
def test_the_name_of_a_container_is_no_option_of_its_engine(image):
    with pytest.raises(AwsError, match="has no valid name"):
        of(image, own_images={"*": OwnImage(is_container=True)})


def test_an_own_image_may_be_our_server_with_other_settings():
    found = of(DJL, own_images=OWN)
    assert (found.family, found.dialect, found.command) == ("own", "lmi-17", ())
    assert found.options == {"dialect": "lmi-17", "dtype": "w8a8"}
    assert of("x", own_images={"x": OwnImage()}).options == {}


@pytest.mark.parametrize(
    ("image", "environment", "engine"),
    [
        ("djl-inference:0.26.0-tensorrtllm0.7.1-cu122", {}, {"OPTION_ROLLING_BATCH": "trtllm"}),
        (
            "djl-inference:0.26.0-tensorrtllm0.7.1-cu122",
            {"OPTION_ROLLING_BATCH": "auto"},
            {"OPTION_ROLLING_BATCH": "trtllm"},
        ),
        (
            "djl-inference:0.26.0-tensorrtllm0.7.1-cu122",
            {"OPTION_ROLLING_BATCH": "vllm"},
            {"OPTION_ROLLING_BATCH": "vllm"},
        ),
        ("djl-inference:0.24.0-neuronx-sdk2.14.1", {}, {"OPTION_ROLLING_BATCH": "tnx"}),
        ("djl-inference:0.36.0-lmi27.0.0-cu130", {}, {}),
        ("vllm:0.20.2-gpu-py312-cu130-ubuntu22.04-sagemaker", {}, {"HEADRACE_ROLLING_BATCH": "vllm"}),
        (
            "vllm:0.20.2-gpu-py312-cu130-ubuntu22.04-sagemaker",
            {"HEADRACE_BACKEND": "native"},
            {"HEADRACE_BACKEND": "native"},
        ),
        ("pytorch-inference-neuronx:1.13.1-neuronx-py310-sdk2.13.2", {}, {"HEADRACE_ROLLING_BATCH": "tnx"}),
        ("huggingface-pytorch-tgi-inference:2.7.0-tgi3.3.6-gpu-py311-cu124-ubuntu22.04", {}, {}),
    ],
)
def test_an_image_asks_for_its_engine_unless_the_container_names_one(image, environment, engine):
    given_variables = dict(of(REGISTRY + image, environment).environment)
    assert given_variables.pop("HEADRACE_CONTAINER") == "true"
    assert {name: value for name, value in given_variables.items() if name not in SPLIT_VARIABLES} == engine


def test_the_engine_of_an_image_is_weaker_than_the_one_in_the_model_s_files():
    environment = of(f"{REGISTRY}djl-inference:0.26.0-tensorrtllm0.7.1-cu122").environment
    named = {"model": "m", "dialect": "lmi-0.26"}

    for properties, engine in (
        ({}, "trtllm"),
        ({"option.rolling_batch": "auto"}, "trtllm"),
        ({"option.rolling_batch": "lmi-dist"}, "lmi-dist"),
    ):
        assert load_settings(named, environment, properties)[0].rolling_batch == engine


@given(image=st.text(max_size=80) | st.from_regex(r"[a-z0-9./:@*_-]{0,60}", fullmatch=True), is_strict=st.booleans())
def test_any_image_uri_gets_a_profile_or_a_refusal(image, is_strict):
    for own in ({}, OWN):
        try:
            found = of(image, own_images=own, is_strict=is_strict)
        except AwsError:
            assert is_strict
        else:
            assert found.dialect in {"auto", "", *DIALECT_NAMES}


@given(version=st.lists(st.integers(0, 10**12), min_size=1, max_size=6))
def test_any_version_in_a_tag_has_a_profile(version):
    text = ".".join(map(str, version))
    for image in (
        f"djl-inference:{text}-lmi{text}",
        f"huggingface-pytorch-tgi-inference:2.0-tgi{text}",
        f"vllm:v{text}",
    ):
        assert of(image).dialect in DIALECT_NAMES
