"""Word lists, and invented words: open-ended names that can only be copied, not remembered."""

import zlib

PEOPLE = """Alice Bob Carol David Emma Frank Grace Henry Ivy Jack Kate Leo Mia Noah Olivia Paul Quinn Rosa Sam Tina Uma
Victor Wendy Xavier Yara Zoe Adam Bella Chen Diana Elias Fatima George Hana Igor Julia Karim Laura Marco Nina Oscar Petra
Ravi Sara Tom Ursula Vera Walter Yuki Anna Ben Clara Daniel Eva Felix Greta Hugo Ines Jonas Kira Lucas Maria Nils Omar
Priya Rita Simon Theo Vincent Amir Linda Peter Susan James Lily Max Ella Ruth Ali Mei Ana Ivan Lena Erik Nora Otto""".split()
CITIES = """Paris London Berlin Rome Madrid Vienna Oslo Dublin Prague Lisbon Tokyo Cairo Lima Delhi Boston Chicago Austin
Denver Seattle Toronto Sydney Hamburg Munich Zurich Geneva Milan Naples Lyon Porto Krakow Kyoto Seoul Mumbai Nairobi Quito
Athens Warsaw Bern Riga Turin""".split()
COUNTRIES = """France England Germany Italy Spain Austria Norway Ireland Portugal Japan Egypt Peru India Canada Australia
Switzerland Poland Korea Kenya Ecuador Greece Brazil China Mexico Chile Sweden Finland Denmark""".split()
COLOURS = "red blue green yellow black white brown orange pink purple grey silver gold".split()

_ONSET = "b br c ch d dr f fl g gr h j k kl l m n p pr qu r s sh st t tr v w z".split()
_VOWEL = "a e i o u ai ea ou".split()
_CODA = ["", "", "", "n", "r", "l", "s", "m", "t", "x", "nd", "ck"]


def invented(rng, unseen=False):
    """An invented capitalised word of two or three syllables. One in eight is reserved for evaluation (`unseen`)."""
    while True:
        n = rng.choice([2, 2, 3])
        word = "".join(rng.choice(_ONSET) + rng.choice(_VOWEL) + (rng.choice(_CODA) if i == n - 1 else "") for i in range(n))
        word = word.capitalize()
        if (zlib.crc32(word.encode()) % 8 == 0) == unseen:
            return word
