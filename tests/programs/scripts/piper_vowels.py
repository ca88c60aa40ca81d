"""The vowels that Arabic and Hebrew leave out, by piper's two models."""

import sys

import numpy as np
from piper.hebrew import NakdimonDiacritizer
from piper.tashkeel import TashkeelDiacritizer

inputs, out = sys.argv[1:]
arabic = "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645"
hebrew = "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd"
np.savez(out, arabic=[TashkeelDiacritizer()(arabic)], hebrew=[NakdimonDiacritizer()(hebrew)])
