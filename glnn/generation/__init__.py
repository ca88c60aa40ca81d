"""Language models and speech to text: their files, tokenizers, graphs, and the choice of tokens."""

from glnn.generation.language_model import LanguageModel
from glnn.generation.speech.speech_to_text import SpeechToText

__all__ = ["LanguageModel", "SpeechToText"]
