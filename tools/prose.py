"""Check the English of the pages, and of the docstrings, comments and messages of the package.

    python tools/prose.py [FILE …]

It prints file:line, the rule and the sentence, and fails if there is any. The rules are for
readers whose first language is not English: short literal sentences, subject first, with the verbs
of the field.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parent.parent
#: Words of a sentence, at most.
WORDS = 35

#: What a sentence must not contain, and what to write instead.
PHRASES = {
    r"\b(?:is|are|was|were|be|been|being) (?:\w+ly )?told\b": "say who reports it, raises or logs",
    r"\b(?:is|are|was|were|be|been|being) (?:had|said)\b": "use an active verb",
    r"\brefused by name\b": "name the error that it raises",
    r"\bso many (?:seconds|times|of)\b": "name the argument",
    r"\b(?:whoever|whosoever|whomever|whichever)\b": "name them: the holder, any process that …",
    r"\b(?:what|who) is there\b": "say what exists",
    r"\b(?:anew|thereby|therein|thereof|hereby|hitherto|whereupon)\b": "again, by this, …",
    r"\bfor ever\b": "forever",
    r"\bas ever\b": "as always, or nothing",
    r"\bat the most\b": "at most",
    r"\b(?:is|are|was|were) no (?:error|loss|lock|reason why)\b": "is not an …",
    r"\bnot? any more\b": "no longer",
}
#: How a sentence must not begin: its subject would be a clause. Up to six words are a title.
OPENINGS = {
    r"(?!.*\?$)(?:What|Who|Whose|Whatever)\b": "begin with a noun, not a clause",
    r"(?:That|Those) (?:of|which|who)\b": "repeat the noun",
}
RULES = [(re.compile(rule, re.IGNORECASE), advice) for rule, advice in PHRASES.items()]
RULES += [(re.compile(rf"^{rule}(?: \S+){{6}}"), advice) for rule, advice in OPENINGS.items()]

#: Parts of sentences that are right as they are.
ALLOWED: tuple[str, ...] = ()

FENCE = re.compile(r"^\s*(```|~~~)")
#: Where a new text begins although no line is empty: a heading, an item, a row, a column.
BEGINS = re.compile(r"^\s*(?:#+ |[-*+] |\d+\. |\||>|\w+ {2,}\S)")
#: Code, links and emphasis count as what a reader sees.
INLINE = [(r"``?[^`]+``?", "Code"), (r"!?\[([^\]]*)\]\([^)]*\)", r"\1"), (r"\*\*?|__", "")]
END = re.compile(r"(?<=[.!?:;|])[\"')]*\s+")

Text = tuple[int, str]


def page_texts(source: str) -> Iterator[Text]:
    """Yield each paragraph, item and row of a page in Markdown, with its first line's number."""
    fenced = False
    started, block = 0, ""
    for number, line in enumerate(source.splitlines(), start=1):
        if not block and line.startswith("    ") or line.startswith("\t"):
            continue  # code
        fence = FENCE.match(line) is not None
        fenced ^= fence
        if fence or fenced or not line.strip() or BEGINS.match(line):
            yield started, block
            started, block = number, ""
        if not fence and not fenced and line.strip():
            block = f"{block}\n{line}" if block else line
            started = number if "\n" not in block else started
    yield started, block


def code_texts(source: str) -> Iterator[Text]:
    """Yield docstrings, comments and messages of a module, with their first line's number."""
    nodes = [*ast.walk(ast.parse(source))]
    docs = [node.value for node in nodes if isinstance(node, ast.Expr)]
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            # The length of a message with values in it is not counted.
            found = page_texts(inspect.cleandoc(node.value)) if node in docs else [(1, node.value)]
            for number, text in found:
                words = text if node in docs else " ".join(text.split()[:WORDS])
                yield node.lineno + number - 1, words
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [(one.start[0], one.string) for one in tokens if one.type == tokenize.COMMENT]
    for _, group in groupby(enumerate(comments), lambda found: found[1][0] - found[0]):
        lines = [comment for _, comment in group]
        yield lines[0][0], "\n".join(text.lstrip("#: ") for _, text in lines)


def template_texts(source: str) -> Iterator[Text]:
    """Yield the texts of a template, with the number of their first line."""
    for text in re.finditer(r'translate "([^"]+)"|blocktranslate[^%]*%}(.*?){%', source, re.DOTALL):
        yield source.count("\n", 0, text.start()) + 1, text[1] or text[2]


TEXTS = {".md": page_texts, ".py": code_texts, ".html": template_texts}


def sentences(number: int, text: str) -> Iterator[Text]:
    """Yield each sentence of a text as a reader sees it, with its first line's number."""
    for pattern, plain in INLINE:
        text = re.sub(pattern, plain, text)
    start = 0
    for end in [*(found.end() for found in END.finditer(text)), len(text)]:
        sentence = text[start:end]
        lead = len(sentence) - len(sentence.lstrip())
        plain = " ".join(sentence.split()).strip(" -|>*\"'(")
        yield number + text.count("\n", 0, start + lead), plain
        start = end


def faults(sentence: str) -> Iterator[str]:
    """Yield what is wrong with a sentence."""
    if not any(allowed in sentence for allowed in ALLOWED):
        yield from (advice for rule, advice in RULES if rule.search(sentence))
        if (length := len(sentence.split())) > WORDS:
            yield f"{length} words, at most {WORDS}"


def main(names: list[str]) -> int:
    """Check these files, or all; return the exit code."""
    everywhere = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("distlock/**/*.*")]
    paths = [Path(name).resolve() for name in names] or everywhere
    failed = False
    for path in sorted(
        path for path in paths if path.suffix in TEXTS and "_build" not in path.parts
    ):
        texts = TEXTS[path.suffix]
        for text in texts(path.read_text()):
            for number, sentence in sentences(*text):
                for advice in faults(sentence):
                    print(f"{path.relative_to(ROOT)}:{number}: {advice}: {sentence}")
                    failed = True
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
