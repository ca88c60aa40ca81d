"""Serves a language model, and asks it four questions at once by OpenAI's client.

Needs `pip install '.[serve]' openai`. The model is a GGUF file with a chat template, or a folder
of Hugging Face. Programs that were written for that client need nothing but `base_url`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

try:
    import openai
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing.name} is missing: pip install '.[serve]' openai") from None

QUESTIONS = ("What is 2 + 2?", "Name a colour.", "Say hello in French.", "Is the sea salty?")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a GGUF file, or a folder of Hugging Face")
    parser.add_argument("--backend", default="auto", help="auto, compute, feedback or cpu")
    parser.add_argument("--max-tokens", type=int, default=40)
    asked = parser.parse_args()

    # On a command line: glnn serve model.gguf
    command = [sys.executable, "-m", "glnn", "serve", asked.model, "--backend", asked.backend]
    command += ["--port", "0", "--sequences", str(len(QUESTIONS)), "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        said = "".join(iter(server.stdout.readline, "}\n"))  # one object, once it listens
        if not said:
            raise SystemExit("the server did not start")
        url = json.loads(said + "}")["url"]
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="any")
        talk(client, asked.max_tokens)
    finally:
        server.terminate()
        server.wait()


def talk(client: openai.OpenAI, max_tokens: int) -> None:
    """Print an answer as it comes, then four answers that are computed together."""

    def answer(question: str) -> tuple[str, int]:
        found = client.chat.completions.create(
            model="any",
            messages=[{"role": "user", "content": question}],
            max_tokens=max_tokens,
            temperature=0,
        )
        assert found.usage is not None
        return found.choices[0].message.content or "", found.usage.completion_tokens

    stream = client.chat.completions.create(
        model="any",
        messages=[{"role": "user", "content": QUESTIONS[0]}],
        max_tokens=max_tokens,
        temperature=0,
        stream=True,
    )
    print(QUESTIONS[0], end=" ", flush=True)
    for chunk in stream:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print("\n")
    start = perf_counter()
    with ThreadPoolExecutor() as threads:
        answers = list(threads.map(answer, QUESTIONS))
    seconds = perf_counter() - start
    for question, (text, _) in zip(QUESTIONS, answers, strict=True):
        print(f"{question} {' '.join(text.split())}")
    tokens = sum(count for _, count in answers)
    print(f"{len(QUESTIONS)} answers at once: {tokens} tokens, {tokens / seconds:.3g} a second")


if __name__ == "__main__":
    main()
