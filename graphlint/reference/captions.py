"""What people call a handwritten digit: captions to train on, and captions kept back to test on.

Standard library only.
"""

from types import MappingProxyType

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

TRAINING_TEMPLATES = (
    "a handwritten {word}",
    "a handwritten {numeral}",
    "the digit {word}",
    "the digit {numeral}",
    "the number {word}",
    "a picture of {article} {word}",
    "a picture of the number {numeral}",
    "{word}, the digit {numeral}",
    "someone wrote {article} {word}",
    "someone wrote the number {numeral} by hand",
    "{article} {word} in handwriting",
    "{numeral} as a handwritten digit",
)
HELD_OUT_TEMPLATES = (
    "please draw me {article} {word}",
    "handwriting that shows the digit {numeral}",
    "a small image of the number {word}",
    "{word} written with a pen",
)
"""No caption made from these is ever trained on."""


def captions_of(digit: int, templates: tuple[str, ...] = TRAINING_TEMPLATES) -> tuple[str, ...]:
    """Returns the captions of a digit, one for each template."""
    word = WORDS[digit]
    article = "an" if word[0] in "aeiou" and word != "one" else "a"
    return tuple(template.format(article=article, word=word, numeral=digit) for template in templates)


TRAINING_CAPTIONS = MappingProxyType({digit: captions_of(digit) for digit in range(10)})
HELD_OUT_CAPTIONS = MappingProxyType({digit: captions_of(digit, HELD_OUT_TEMPLATES) for digit in range(10)})
