"""Language models and speech to text: their files, tokenizers, graphs, and the choice of tokens."""

from glnn.generation.generation import Generation
from glnn.generation.language_model import LanguageModel
from glnn.generation.speech.speech_to_text import Segment, SpeechToText, Transcript
from glnn.generation.speech.subtitles import srt, vtt

__all__ = [
    "Generation",
    "LanguageModel",
    "Segment",
    "SpeechToText",
    "Transcript",
    "srt",
    "vtt",
]
