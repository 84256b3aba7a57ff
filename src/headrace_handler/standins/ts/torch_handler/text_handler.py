"""The handlers of text, with their base class."""

import functools
import re
import string
import unicodedata
from pathlib import Path
from typing import Any, Final

from ..context import Context
from ..handler_utils import get_tokenizer, ngrams_iterator
from ..utils.util import map_class_to_label
from .base_handler import BaseHandler

_MARKUP: Final = re.compile(r"<.*?>|&(?:[a-z0-9]+|#[0-9]{1,6}|#x[0-9a-f]{1,6});")
_IRREGULAR: Final = {
    "ain't": "is not",
    "can't": "cannot",
    "let's": "let us",
    "ma'am": "madam",
    "o'clock": "of the clock",
    "shan't": "shall not",
    "won't": "will not",
    "y'all": "you all",
    "'cause": "because",
    **{
        f"{word}'s": f"{word} is"
        for word in ("it", "he", "she", "that", "there", "here", "what", "who", "where", "when", "why", "how")
    },
}
_ENDINGS: Final = {"n't": " not", "'re": " are", "'ve": " have", "'ll": " will", "'d": " would", "'m": " am"}
_CONTRACTION: Final = re.compile(
    r"(?<!\w)(?:" + "|".join(map(re.escape, _IRREGULAR)) + r")(?!\w)|(?<=\w)(?:" + "|".join(_ENDINGS) + r")(?!\w)",
    flags=re.IGNORECASE,
)


class TextHandler(BaseHandler):
    """A handler with a vocabulary, `source_vocab.pt`, and functions that normalize text."""

    def __init__(self) -> None:
        super().__init__()
        self.source_vocab: Any = None
        self.tokenizer = get_tokenizer("basic_english")
        self.input_text: str | None = None

    @functools.cached_property
    def lig(self) -> Any:
        """Captum's integrated gradients over the embedding, created for the first explanation."""
        from captum.attr import LayerIntegratedGradients

        return LayerIntegratedGradients(self.model, self.model.embedding)

    def initialize(self, context: Context) -> None:
        import torch

        super().initialize(context)
        self.initialized = False
        path = self.manifest["model"].get("sourceVocab") or self.get_source_vocab_path(context)
        # The archive's author also wrote the code that runs here: a pickled vocabulary is no further risk.
        self.source_vocab = torch.load(path, weights_only=False)
        self.initialized = True

    def get_source_vocab_path(self, ctx: Context) -> str:
        """Return the path of the vocabulary. Raises `FileNotFoundError`: the model has none."""
        path = Path(ctx.system_properties["model_dir"], "source_vocab.pt")
        if not path.is_file():
            raise FileNotFoundError(f"The vocabulary {path} is missing; pack it with the model by `--extra-files`.")
        return str(path)

    def get_word_token(self, input_tokens: list[str]) -> list[str]:
        """Remove the marks of byte-pair tokenizers for spaces."""
        return [token.replace("Ġ", "") for token in input_tokens]

    def summarize_attributions(self, attributions: Any) -> Any:
        """Scale the attributions of tokens to the length 1."""
        import torch

        attributions = torch.softmax(attributions, dim=-1)
        return attributions / torch.norm(attributions.sum(dim=-1))

    def _expand_contractions(self, text: str) -> str:
        return _CONTRACTION.sub(_expanded, text).replace("'", "")

    def _remove_accented_characters(self, text: str) -> str:
        return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii")

    def _remove_html_tags(self, text: str) -> str:
        return _MARKUP.sub("", text)

    def _remove_punctuation(self, text: str) -> str:
        return text.translate(str.maketrans("", "", string.punctuation))

    _remove_puncutation = _remove_punctuation
    """The name as TorchServe first had it."""

    def _tokenize(self, text: str) -> list[str]:
        return self.tokenizer(text)


def _expanded(contraction: re.Match[str]) -> str:
    found = contraction.group(0)
    lower = found.lower()
    words = _IRREGULAR.get(lower) or _ENDINGS[lower]
    return found[0] + words[1:] if words[0] == lower[0] else words


class TextClassifier(TextHandler):
    """Returns the probability of each class for one text: it takes batches of one request only."""

    ngrams = 2

    def preprocess(self, data: Any) -> Any:
        """Return the numbers of the text's n-grams, and its words."""
        import torch

        text = data[0].get("data") or data[0].get("body")
        if isinstance(text, bytes | bytearray):
            text = text.decode("utf-8")
        text = self._expand_contractions(self._remove_html_tags(text).lower())
        words = self._tokenize(self._remove_punctuation(self._remove_accented_characters(text)))
        numbers = [self.source_vocab[ngram] for ngram in ngrams_iterator(words, self.ngrams)]
        return torch.as_tensor(numbers, device=self.device), words

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        del args, kwargs
        return super().inference(data[0], torch.as_tensor([0], device=self.device))

    def postprocess(self, data: Any) -> list[Any]:
        import torch

        return map_class_to_label(torch.softmax(data, dim=-1).tolist(), self.mapping)

    def get_insights(self, data_preprocess: Any, inputs: Any, target: Any = 0) -> Any:
        import torch
        from captum.attr import TokenReferenceBase

        del inputs
        numbers, words = data_preprocess
        reference = TokenReferenceBase().generate_reference(numbers.shape[0], device=self.device).squeeze(0)
        attributions = self.lig.attribute(
            numbers,
            reference,
            additional_forward_args=(torch.tensor([0], device=self.device)),
            return_convergence_delta=False,
            target=target,
        )
        importances = self.summarize_attributions(attributions).tolist()
        return [{"importances": importances, "words": self.get_word_token(words)}]
