"""An OpenAI-compatible HTTP server of one language model. Needs the packages of glnn[serve]."""
