"""Texts that tell tokenizer engines apart."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BLOCK = 64
"""Code points a text: few enough to name a difference, enough to be quick."""

FRAGMENTS = (
    # blanks and line ends
    " ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\n\n", " \n", "\n ", "\x0b", "\x0c", "\x85", "\xa0", "\u2003",
    "\u2028", "\u2029", "\u3000", "\u200b", "\ufeff", "\x00", "\x1c", "\x7f",
    # contractions, and letters that fold to them
    "'s", "'S", "'\u017f", "'t", "'re", "'RE", "'ve", "'m", "'ll", "'LL", "'d", "\u2019s", "'", "''", "s", "\u017f",
    "\u212a", "\u0130", "\u0131",
    # letters, cases, numbers
    "a", "Z", "the", "Hello", "eBay", "NaOH", "x1y2", "0", "12", "345", "6789", "3.14", "1,000", "\u0663\u0664", "\u00bd",
    "\u2460", "\u4e00", "\u4e2d\u6587", "\u3042\u30ab", "\u3400", "\U00020000", "\ud55c\uad6d", "\u1112\u1161\u11ab",
    "\u0915\u094d\u0937", "\u0e44\u0e17\u0e22", "\u05e9\u05dc", "\u0645\u0631", "\u01c5", "\u02b0", "\u00aa",
    # marks: composed, decomposed, out of canonical order, on nothing
    "e\u0301", "\u00e9", "\u0301", "a\u0323\u0307", "a\u0307\u0323", "\u1e69", "s\u0307\u0323", "\u0344", "\u2126", "\ufb01",
    "\u0958", "\u0f73", "\u20dd", "A\u030a", "\u212b", "=\u0338", ">\u0338",
    # emoji
    "\U0001f44d", "\U0001f44d\U0001f3fd", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\u2764\ufe0f", "\U0001f1e9\U0001f1ea", "1\ufe0f\u20e3",
    # punctuation and code
    ".", ",", "!", "...", "--", "//", "://", "{}", "</", "<|", "|>", "<", ">", "_", "__init__", "#", "@", "$", "\u20ac",
    "\\n", '"', "(", ")", "[]", "=", "==", "+", "\u3002", "\uff0c", "\u00a7", "\u2014", "\u00ad",
    # the ends of the code space
    "\ue000", "\ufffd", "\uffff", "\U000e0001", "\U0010ffff",
)  # fmt: skip


def groups(
    added_tokens: Sequence[str], token_texts: Sequence[str], *, full: bool = False
) -> Iterator[tuple[str, list[str]]]:
    """Named groups of texts, the quickest to differ first.

    Args:
        added_tokens, token_texts: what the tokenizer has.
        full: take time for it: ten times the hostile strings, each vocabulary
            entry as a text of its own, each code point in more contexts.
    """
    yield "hostile strings", hostile(20_000 if full else 2000, seed=1)
    yield "added tokens in text", added_in_text(added_tokens if full else added_tokens[:300])
    yield "every vocabulary entry", vocabulary(token_texts, full=full)
    yield "every code point in several contexts", code_points(full=full)
    yield "megabyte strings", megabytes(1 << 20 if full else 1 << 18)


def hostile(count: int, *, seed: int, extra: Sequence[str] = ()) -> list[str]:
    """Random strings of awkward fragments, the same for the same seed."""
    chooser = random.Random(seed)  # noqa: S311  reproducible, not secret
    stock = (*FRAGMENTS, *extra)
    return ["".join(chooser.choices(stock, k=chooser.randint(1, 40))) for _ in range(count)]


def added_in_text(added_tokens: Sequence[str]) -> list[str]:
    """Each added token between letters, blanks, marks and itself, and broken ones."""
    around = (
        "{0}",
        "x{0}y",
        " {0} ",
        "\n{0}\n\n",
        "{0}{0}",
        "{0}\u0301",
        "e{0}\u0301 ",
        "'{0}s",
        "12{0}34",
        "  {0}  {0}",
    )
    texts = [form.format(token) for token in added_tokens for form in around]
    texts += [token[:-1] + tail for token in added_tokens for tail in ("", " ", token)]
    texts += [token.upper() for token in added_tokens]
    return texts + hostile(500, seed=2, extra=list(added_tokens)[:400] or ("",))


def vocabulary(token_texts: Sequence[str], *, full: bool) -> list[str]:
    """Each vocabulary entry's text as a line (or text) of its own, and many of them run together."""
    chooser = random.Random(3)  # noqa: S311  reproducible, not secret
    mixed = list(token_texts)
    chooser.shuffle(mixed)
    lines = list(token_texts) if full else ["\n".join(token_texts[i : i + 64]) for i in range(0, len(token_texts), 64)]
    return lines + ["".join(mixed[i : i + 16]) for i in range(0, len(mixed), 16 if full else 64)]


def code_points(*, full: bool) -> list[str]:
    """Every code point but surrogates, each in several contexts.

    The planes in use have each point after and before a letter, after a blank
    and before a digit (and more, if `full`); the planes that hold nothing or
    only private use have each of a sample between letters, and all of them in
    a row if `full`.
    """
    form = "a{0}b {0}1{0}{0}\n{0}'{0}s e\u0301{0}" if full else "a{0}b {0}1"
    texts = []
    for start in range(0, 0x110000, BLOCK):
        if 0xD800 <= start < 0xE000:
            continue
        points = [chr(point) for point in range(start, start + BLOCK)]
        if start < 0x34000 or 0xE0000 <= start < 0xE1000:
            texts.append("".join(map(form.format, points)))
        elif start % (16 * BLOCK) == 0:
            texts.append("".join(f"a{point}{point} {point}" for point in points))
        elif full:
            texts.append("".join(points))
    return texts


def megabytes(size: int) -> list[str]:
    """Long strings: one character, no blanks, only blanks, base64, wide letters, everything."""
    chooser = random.Random(4)  # noqa: S311  reproducible, not secret
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    one = [char * (size // 8 // len(char.encode())) for char in ("a", " ", "\n", "=", "\u4e2d", "0", "\r\n")]
    return [*one, "".join(chooser.choices(alphabet, k=size)), "".join(hostile(size // 60, seed=5))]
