"""The public names of the package."""

from sagemaker_containers import _content_types as content_types
from sagemaker_containers import _encoders as encoders
from sagemaker_containers import _env as env
from sagemaker_containers import _errors as errors
from sagemaker_containers import _modules as modules
from sagemaker_containers import _transformer as transformer
from sagemaker_containers import _worker as worker
from sagemaker_containers import entry_point

__all__ = ["content_types", "encoders", "entry_point", "env", "errors", "modules", "transformer", "worker"]
