"""Writes pipelines.json, reference data of tests/text: small byte-level BPE tokenizers with every
supported component, and token ids computed by the Python package tokenizers.

    python -m venv v && v/bin/pip install tokenizers==0.23.3
    v/bin/python make.py
"""

import json
import pathlib

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).parent
CORPUS = [
    "The quick brown fox doesn't jump over 1234567 lazy dogs; they've 12 of 300.",
    "We'll see: it's I'm, you're, he'd. WE'LL SEE, IT'S! don't Don't DON'T",
    "for (int i = 0; i < 10; ++i) { sum += x[i]; }\n\n\treturn sum;\r\n",
    "caf\u00e9 na\u00efve \u00fcber stra\u00dfe \u4f60\u597d\u4e16\u754c \u3053\u3093\u306b\u3061\u306f",
    "   leading and trailing   \n\n\n  spaces \t\t tabs  ",
    "HelloWorld camelCaseWords ABCdef XMLHttpRequest snake_case_word",
]
TEXTS = CORPUS + [
    "",
    " ",
    "  1",
    "a  1  b 22 c333 4444d 55555",
    "\n\n12\n 3",
    "\u0663\u0664 \u00bd \u2167 \u00b2x \u3007 \u4e00",
    "e\u0301 \u00e9 \u1e9b\u0323 \ufb01 \u212b A\u030a q\u0307\u0323",
    "x\u00a0y\u2028z\u0085w\u200bv\ufeffu\u180et\u3000s",
    "'S 'T 'LL '\u017f 'VE 're 'd 'x",
    "a/b//c\r\n/d\n/ e/\n",
    "<tok>",
    "a<tok>b <tok> c",
    "<word>",
    "a<word> <word>b <word>. \u00e9<word> <word>\u4e2d -<word>-",
    "a  <left>  b",
    "a  <right>  b <right>\n\n c",
    "  <both>  <both>  <left> ",
    "<to<tok><tokens> <tokens>x",
    "caf\u00e9tok cafe\u0301tok CAF\u00c9TOK",
    "<tok><tok><left><both>",
    "\U0001f600 emoji \U0001f469\u200d\U0001f4bb and \u0000 nul \x04\x06 control \x7f",
    "a\u07fd\u0367b\u1ac9\u0334c\u1e08f\u0334 e\u0345\u0301\u0334",
    "word" * 40,
    "a,b , c ,, d",
    "\u01c5 \u02b0 \u0e01\u0e33 \u0939\u093f\u0928\u094d\u0926\u0940 \u0627\u0644\u0639\u0631\u0628\u064a\u0629",
]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level(use_regex):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=use_regex)


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(pattern, behavior, invert)


def sequence(*steps):
    return pre_tokenizers.Sequence([*steps, byte_level(False)])


# name, tokenizer.ggml.pre with the same rules (or None), normalizer, pre-tokenizer, BPE options
PIPELINES = [
    ("gpt2", "gpt-2", None, byte_level(True), {}),
    (
        "digits then gpt2", "smollm", None,
        pre_tokenizers.Sequence([pre_tokenizers.Digits(True), byte_level(True)]), {},
    ),
    (
        "runs of digits", None, None,
        pre_tokenizers.Sequence([pre_tokenizers.Digits(False), byte_level(True)]), {},
    ),
    ("llama3", "llama-bpe", None, sequence(split(Regex(LLAMA3))), {"ignore_merges": True}),
    ("qwen2", "qwen2", normalizers.NFC(), sequence(split(Regex(QWEN2))), {}),
    ("tekken", "tekken", None, sequence(split(Regex(TEKKEN))), {"ignore_merges": True}),
    ("nfd", None, normalizers.NFD(), byte_level(True), {}),
    ("nfc in a sequence", None, normalizers.Sequence([normalizers.NFC()]), byte_level(True), {}),
    ("removed", None, None, sequence(split(" ", "removed")), {}),
    ("merged with previous", None, None, sequence(split(Regex(r"[,\s]"), "merged_with_previous")), {}),
    ("merged with next", None, None, sequence(split(Regex(r"[,\s]"), "merged_with_next")), {}),
    ("contiguous", None, None, sequence(split(",", "contiguous"), split(Regex(r"\s"), "contiguous")), {}),
    ("inverted", None, None, sequence(split(Regex(r"\p{L}+|\p{N}+"), "removed", True)), {}),
    ("unknown", None, None, byte_level(True), {"unk_token": "<unk>"}),
    ("unknown fused", None, None, byte_level(True), {"unk_token": "<unk>", "fuse_unk": True}),
]
ADDED = [
    AddedToken("<tok>", normalized=False, special=True),
    AddedToken("<tokens>", normalized=False, special=False),
    AddedToken("<word>", single_word=True, normalized=False),
    AddedToken("<left>", lstrip=True, normalized=False),
    AddedToken("<right>", rstrip=True, normalized=False),
    AddedToken("<both>", lstrip=True, rstrip=True, normalized=False),
    AddedToken("caf\u00e9tok", normalized=True, special=False),
]


def build(normalizer, pre_tokenizer, options):
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    specials = ["<unk>"] if "unk_token" in options else []
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=380, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    vocab, merges = model["vocab"], [tuple(m) for m in model["merges"]]
    if "unk_token" in options:  # bytes without a token
        for missing in "\u0125\u0126\u01000\u0157":
            if missing in vocab and not any(missing in a + b for a, b in merges):
                del vocab[missing]
    if options.get("ignore_merges"):  # tokens that merging does not reach
        for word in ("over", "\u0120sum", "Hello"):
            vocab.setdefault(word, len(vocab))
    tokenizer.model = models.BPE(vocab=vocab, merges=merges, **options)
    tokenizer.add_tokens([t for t in ADDED if not t.special])
    tokenizer.add_special_tokens([t for t in ADDED if t.special])
    return tokenizer


def main():
    out = []
    for name, pre, normalizer, pre_tokenizer, options in PIPELINES:
        tokenizer = build(normalizer, pre_tokenizer, options)
        out.append(
            {
                "name": name,
                "pre": pre,
                "tokenizer": json.loads(tokenizer.to_str()),
                "cases": [
                    {"text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids}
                    for text in TEXTS
                ],
            }
        )
    (HERE / "pipelines.json").write_text(json.dumps(out, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
