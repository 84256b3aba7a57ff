"""Read the model that a `ModelSource` names: everything but its weights, which stay in their files."""

from headrace.core.progress import Progress
from headrace.inference.engine.config import ModelSource
from headrace.inference.models.loading import load_hf_model, load_model
from headrace.inference.models.model import HfModel, Model


def read_model(source: ModelSource, progress: Progress) -> Model:
    """
    Return a model whose network we build.

    Raises:
        UserError: The model cannot be found or read.
    """
    return load_model(
        source.model,
        revision=source.revision,
        cache_dir=source.cache_dir,
        chat_template=source.chat_template,
        rope=source.rope,
        generation_config=source.generation_config,
        progress=progress,
    )


def read_hf_model(source: ModelSource, progress: Progress) -> HfModel:
    """
    Return a model whose network another library builds.

    Raises:
        UserError: The model cannot be found or read.
    """
    return load_hf_model(
        source.model,
        revision=source.revision,
        cache_dir=source.cache_dir,
        chat_template=source.chat_template,
        generation_config=source.generation_config,
        progress=progress,
    )
