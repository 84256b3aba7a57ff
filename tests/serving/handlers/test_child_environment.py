"""The variables that user code gets."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.serving.handlers.assembly import child_environment, share_of_threads
from headrace.serving.settings.loading import CODE_ENV_NAMES, load_settings

NAMES = st.from_regex(r"[A-Z][A-Z_]{0,9}", fullmatch=True)


@given(st.dictionaries(NAMES, st.text(max_size=3)), st.sets(NAMES))
def test_nothing_of_headrace_reaches_the_code_and_all_else_does(given: dict[str, str], own: set[str]) -> None:
    server = given | {f"HEADRACE_{name}": "secret" for name in own}
    kept = {name: value for name, value in given.items() if name != "API_KEY"}
    assert child_environment(server) == kept | {"PYTHONUNBUFFERED": "1"}


def test_keys_of_the_server_by_all_their_names_are_withheld_and_credentials_of_the_model_are_not() -> None:
    credentials = {"HF_TOKEN": "t", "AWS_SECRET_ACCESS_KEY": "k", **dict.fromkeys(CODE_ENV_NAMES, "true")}
    servers = (f"{prefix}API_KEY" for prefix in ("HEADRACE_", "", "SM_VLLM_", "SM_SGLANG_", "SM_LLAMA_CPP_"))
    secrets = dict.fromkeys((*servers, "HEADRACE_DATABASE"), "secret")
    assert child_environment(credentials | secrets) == credentials | {"PYTHONUNBUFFERED": "1"}


def test_variables_of_the_code_are_no_unknown_settings_of_the_server() -> None:
    load_settings({"model": "m"}, dict.fromkeys(CODE_ENV_NAMES, "true"))


def test_children_share_the_cores_unless_the_model_says_otherwise() -> None:
    assert share_of_threads({}, num_children=4, num_cores=10) == {"OMP_NUM_THREADS": "2"}
    assert share_of_threads({}, num_children=4, num_cores=2) == {"OMP_NUM_THREADS": "1"}
    assert share_of_threads({}, num_children=1, num_cores=10) == {}
    assert share_of_threads({"OMP_NUM_THREADS": "8"}, num_children=4, num_cores=10) == {}
