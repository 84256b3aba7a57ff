"""
Chooses the code that serves a model: Headrace's own engine, or the user's by one of three contracts. Pure.

`docs/custom-code/README.md` has the same rules as a chart.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from headrace.core.errors import SettingsError
from headrace.serving.handlers.found import CODE_FOLDER, MANIFEST_FILE, Found
from headrace.serving.handlers.spec import ContractName

HandlerMode = Literal["auto", "native", "handler"] | ContractName
"""The setting `handler`."""

_SKLEARN_FILES: Final = (".skops", ".joblib", ".pkl", ".pickle", ".cloudpkl")
"""Source: DJL, `PyModel.findModelFile`."""
_OTHER_ENTRIES: Final = ("djl_python.sklearn_handler", "djl_python.sagemaker")
"""DJL's modules that do not generate text; Headrace's engine replaces all others."""
_FORMATTERS: Final = ("@input_formatter", "@output_formatter")
_NATIVE_TASKS: Final = ("text-generation", "feature-extraction", "text-classification", "sentiment-analysis")
"""Values of `HF_TASK` that Headrace's engine serves."""
_PIPELINES: Final = ("ForQuestionAnswering", "ForTokenClassification", "ForMaskedLM")
"""Suffixes of architectures whose task in the Hugging Face images the engine does not serve. Source: the toolkit's
`transformers_utils.py`, `ARCHITECTURES_2_TASK`."""
_ALWAYS_CODE: Final = ("sklearn", "xgboost")
"""Families of images whose models only the toolkit can load."""
_PROGRAM: Final = "inference.py"
_TOOLKIT_FUNCTIONS: Final = frozenset({"model_fn", "input_fn", "predict_fn", "output_fn", "transform_fn"})
"""A program beside the model has one of them; checkpoints often bring a script of the same name that has none."""
_BOOSTER: Final = "xgboost-model"
"""The model file that SageMaker's XGBoost algorithm writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerChoice:
    """The code that serves a model, and the reason in a sentence for the log and `headrace describe`."""

    contract: ContractName | None
    """The contract of the code that runs; None if no code runs."""
    reason: str
    formatters: str = ""
    """File whose code only changes requests and responses of Headrace's engine: DJL's formatters."""


def choose(found: Found, mode: HandlerMode = "auto") -> HandlerChoice:
    """
    Decide what serves a model.

    Raises:
        SettingsError: `mode` is `handler` or a contract, and the model has no code for it.
    """
    if mode == "native":
        return HandlerChoice(contract=None, reason="The setting handler is native.")
    # The image decides first, as on SageMaker; a folder without one is known by its files.
    choice = (
        _by_image(found)
        or _archive(found)
        or _toolkit(found)
        or _djl(found)
        or HandlerChoice(contract=None, reason="The model has no code of its own.")
    )
    if mode in _CONTRACTS and choice.contract != mode:
        choice = _CONTRACTS[mode](found) or HandlerChoice(contract=None, reason=choice.reason)
    if mode in _CONTRACTS and choice.contract is None:
        raise SettingsError(
            f"The setting handler is {mode!r}, and {found.model_name} has no code for that contract: {choice.reason} "
            f"Expected one of auto, native, handler, {', '.join(_CONTRACTS)}.",
            name="handler",
        )
    if mode == "handler" and choice.contract is None and (why := _pipeline(found, native_tasks=())):
        return _sagemaker(why)
    if mode == "handler" and (choice.contract is None or choice.formatters):
        raise SettingsError(
            f"The setting handler is 'handler', and {found.model_name} has no code to run: {choice.reason} Expected "
            f"model.py with a function handle, {MANIFEST_FILE}, or {CODE_FOLDER}/{_PROGRAM}.",
            name="handler",
        )
    return choice


def _by_image(found: Found) -> HandlerChoice | None:
    """Return the choice that the image determines; None if the files decide."""
    program = found.env.get("SAGEMAKER_PROGRAM", "").strip()
    if found.family in _ALWAYS_CODE:
        return _sagemaker(f"the image is one of {found.family}")
    if found.family == "djl":
        return _djl(found)
    if MANIFEST_FILE in found.files and found.family in ("torchserve", ""):
        return HandlerChoice(contract="torchserve", reason=f"The model has {MANIFEST_FILE}.")
    if program:
        return _sagemaker(f"SAGEMAKER_PROGRAM is {program}")
    if "code/inference.py" not in found.files and (why := _pipeline(found)):
        return _sagemaker(why)
    return None


def _pipeline(found: Found, native_tasks: Collection[str] = _NATIVE_TASKS) -> str:
    """Return why a transformers pipeline serves the model; empty if the engine serves its task."""
    task = found.env.get("HF_TASK", "").strip()
    if task:
        return f"HF_TASK is {task}" if found.family in ("transformers", "") and task not in native_tasks else ""
    if found.family == "transformers" and (found.is_encoder_decoder or found.architecture.endswith(_PIPELINES)):
        return f"the model is a {found.architecture}"
    return ""


def _archive(found: Found) -> HandlerChoice | None:
    if MANIFEST_FILE in found.files or any(name.lower().endswith(".mar") for name in found.files):
        return HandlerChoice(contract="torchserve", reason="The model is an archive of TorchServe.")
    return None


def _toolkit(found: Found) -> HandlerChoice | None:
    """Return the program of SageMaker's toolkits, or a model that only they load."""
    if f"{CODE_FOLDER}/{_PROGRAM}" in found.files:
        return _sagemaker(f"the model has {CODE_FOLDER}/{_PROGRAM}")
    if defined := sorted(_TOOLKIT_FUNCTIONS & found.functions.get(_PROGRAM, frozenset())):
        return _sagemaker(f"the model has {_PROGRAM} with {defined[0]}")
    if _BOOSTER in found.files:
        return _sagemaker(f"the model has {_BOOSTER}")
    has_llm = any(name in ("config.json", "params.json") or name.endswith(".gguf") for name in found.files)
    # The toolkit's default handler loads a file of PyTorch.
    if found.family == "torchserve" and not has_llm and any(name.endswith((".pt", ".pth")) for name in found.files):
        return _sagemaker("the model is a file of PyTorch")
    return None


def _sagemaker(why: str) -> HandlerChoice:
    return HandlerChoice(contract="sagemaker", reason=f"{why[0].upper()}{why[1:]}.")


def _djl(found: Found) -> HandlerChoice | None:
    """Return the code that DJL runs; None if DJL would use its own engines, which ours replaces."""
    entry = found.option("entrypoint", "OPTION_ENTRYPOINT", "DJL_ENTRY_POINT")
    handler = found.option("handler", "OPTION_HANDLER") or "handle"
    name = next((name for name in (f"{found.model_name}.py", "model.py") if name in found.files), None)
    if entry and (not entry.startswith("djl_python.") or entry in _OTHER_ENTRIES):
        return HandlerChoice(contract="djl", reason=f"option.entryPoint is {entry}.")
    if entry:
        reason = f"option.entryPoint is {entry}, which Headrace's engine stands for."
        return _djl_formatters(found, name, handler) or HandlerChoice(contract=None, reason=reason)
    return _djl_model(found) if name is None else _djl_file(found, name, handler)


def _djl_formatters(found: Found, name: str | None, handler: str) -> HandlerChoice | None:
    """Return the formatters of a file around Headrace's engine; None if it has a handler, or no formatters."""
    defined = found.functions.get(name or "") or frozenset()
    marks = [mark for mark in _FORMATTERS if mark in defined]
    if name is None or not marks or handler in defined:
        return None
    reason = f"{name} has {' and '.join(marks)} and no {handler}."
    return HandlerChoice(contract="djl", reason=reason, formatters=name)


def _djl_file(found: Found, name: str, handler: str) -> HandlerChoice:
    defined = found.functions.get(name)
    if defined is None:
        return HandlerChoice(contract="djl", reason=f"{name} is there, and its import will tell why it cannot be read.")
    if handler in defined or "*" in defined or "@prediction_handler" in defined:
        return HandlerChoice(contract="djl", reason=f"{name} defines {handler}.")
    choice = _djl_model(found) or _djl_formatters(found, name, handler)
    return choice or HandlerChoice(contract=None, reason=f"{name} defines no {handler}.")


def _djl_model(found: Found) -> HandlerChoice | None:
    names = [f"{stem}{ending}" for stem in (found.model_name, "model") for ending in _SKLEARN_FILES]
    model = next((name for name in names if name in found.files), None)
    return None if model is None else HandlerChoice(contract="djl", reason=f"{model} is a model of scikit-learn.")


def _toolkit_or_pipeline(found: Found) -> HandlerChoice | None:
    why = _pipeline(found, native_tasks=())
    return _toolkit(found) or (_sagemaker(why) if why else None)


_CONTRACTS: Final[Mapping[str, Callable[[Found], HandlerChoice | None]]] = {
    "djl": _djl,
    "torchserve": _archive,
    "sagemaker": _toolkit_or_pipeline,
}
assert set(_CONTRACTS) == set(get_args(ContractName))
