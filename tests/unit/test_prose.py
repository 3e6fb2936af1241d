"""tools/prose.py finds what a reader would stumble over, and where."""

import pytest

from tools.prose import code_texts, faults, main, page_texts, sentences, template_texts


def found(source, texts=page_texts):
    """Return the sentences with a fault, with the numbers of their lines."""
    every = [sentence for text in texts(source) for sentence in sentences(*text)]
    return [(number, sentence) for number, sentence in every if list(faults(sentence))]


def test_the_pages_and_the_package_have_no_fault():
    assert main([]) == 0


@pytest.mark.parametrize(
    "sentence",
    [
        "The holder is told of a loss.",
        "Other databases are refused by name.",
        "It ends after so many seconds.",
        "Whoever has the lock may enter.",
        "What was rolled back may go back beyond the acquire.",
        "Who looks late sees all members reported as crashed.",
        "That of a thread which asks again is not known.",
        "It waits for ever.",
        " ".join(["word"] * 36) + ".",
    ],
)
def test_a_sentence_has_a_fault(sentence):
    assert [*faults(sentence)]


@pytest.mark.parametrize(
    "sentence",
    [
        "The holder learns of a loss.",
        "What happens to my lock if the worker is killed?",
        "What the demo shows.",
        " ".join(["word"] * 35) + ".",
    ],
)
def test_a_sentence_has_no_fault(sentence):
    assert [*faults(sentence)] == []


def test_sentences_have_the_number_of_the_line_where_they_begin():
    page = "# Title\n\nOne. Then\none that is told. `is told` is code.\n\n| cell | is told |\n"
    assert found(page) == [(3, "Then one that is told."), (6, "is told")]


def test_code_in_a_page_is_left_out():
    assert found("```python\nwhoever()\n```\n\n    whoever\n") == []


def test_docstrings_comments_and_messages_are_read():
    module = '"""It is\nsaid."""\n\n# It is\n# told.\nraise ValueError(f"{x} is had")\n'
    assert [number for number, _ in sorted(found(module, code_texts))] == [1, 4, 6]


def test_texts_of_templates_are_read():
    template = '<p title="{% translate "It is told." %}">\n{% blocktranslate %}Whoever{% end %}'
    assert found(template, template_texts) == [(1, "It is told."), (2, "Whoever")]
