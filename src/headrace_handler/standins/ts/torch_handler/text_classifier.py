"""The default handler `text_classifier`."""

from typing import Any

from ..handler_utils.text_utils import ngrams_iterator
from ..utils.util import map_class_to_label
from .text_handler import TextHandler


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
        """Return the importance of each word."""
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
