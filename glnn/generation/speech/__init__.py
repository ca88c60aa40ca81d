"""Speech to text: recordings, their features, whisper's graphs, and the choice of tokens."""
