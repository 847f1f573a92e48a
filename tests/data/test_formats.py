from __future__ import annotations

import gettext
import shutil
import subprocess
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from echelon.data import formats
from echelon.data.corpora import LineReader, PairFile
from echelon.data.formats import PAIR_READERS, Layout, read_tmx
from echelon.data.streams import FileLocation
from echelon.errors import DataError

TMX = """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en"/><body>
<tu><tuv xml:lang="en"><seg>A dog &amp; a cat</seg></tuv><tuv xml:lang="de"><seg>Hund und Katze</seg></tuv></tu>
<tu><tuv xml:lang="fr"><seg>chien</seg></tuv><tuv xml:lang="de"><seg>Hund</seg></tuv></tu>
<tu><tuv xml:lang="EN_gb"><seg>two
lines <bpt i="1">&lt;b&gt;</bpt>bold<ept i="1">&lt;/b&gt;</ept> <hi>more</hi>.</seg></tuv>
<tuv lang="DE-at"><seg>zwei Zeilen</seg></tuv></tu>
</body></tmx>
"""
PO = r"""# A header
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"

#: main.c:3
msgid "Open \"file\""
msgstr "Datei "
"öffnen"

#, fuzzy
msgid "Close"
msgstr "Offen"

msgid "Not translated"
msgstr ""

msgctxt "menu"
msgid "one\tfile"
msgid_plural "%d files"
msgstr[0] "eine\tDatei"
msgstr[1] "%d Dateien"
#~ msgid "old"
#~ msgstr "alt"
msgid "two\nlines"
msgstr "zwei\nZeilen"
"""
PO_PAIRS = [
    ('Open "file"', "Datei öffnen"),
    ("one\tfile", "eine\tDatei"),
    ("%d files", "%d Dateien"),
    ("two lines", "zwei Zeilen"),
]


def read(
    path: Path, columns: tuple[int, int] = (1, 2), languages: tuple[str, str] = ("en", "de")
) -> list[tuple[str, str]]:
    pairs = PairFile(path.name, FileLocation(path), columns, languages).pairs()
    return [(source.decode(), target.decode()) for source, target in pairs]


def write(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_tmx_units_with_both_languages_are_read(tmp_path: Path) -> None:
    path = write(tmp_path, "memory.tmx", TMX)
    assert read(path) == [("A dog & a cat", "Hund und Katze"), ("two lines bold more.", "zwei Zeilen")]
    assert read(path, languages=("de", "fr")) == [("Hund", "chien")]


def test_tmx_in_utf16_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, "memory.tmx", TMX.replace("utf-8", "utf-16").encode("utf-16"))
    assert read(path)[0] == ("A dog & a cat", "Hund und Katze")


def test_damaged_tmx_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "memory.tmx", TMX[:-20])
    with pytest.raises(DataError, match=r"memory\.tmx: is no TMX file"):
        read(path)


@pytest.mark.parametrize("encoding", ["klingon", "shift_jis", "idna", "rot13"])
def test_an_encoding_that_xml_readers_do_not_know_is_named(tmp_path: Path, encoding: str) -> None:
    path = write(tmp_path, "memory.tmx", TMX.replace("utf-8", encoding))
    with pytest.raises(
        DataError, match=r"memory\.tmx: its encoding cannot be read .*; convert the file to UTF-8"
    ):
        read(path)


def test_mark_up_may_be_nested_deeply(tmp_path: Path) -> None:
    deep = "<hi>" * 5000 + "cat" + "</hi>!" * 5000
    path = write(tmp_path, "memory.tmx", TMX.replace("cat</seg>", f"{deep}</seg>"))
    assert read(path)[0] == ("A dog & a cat" + "!" * 5000, "Hund und Katze")


def test_a_file_without_the_languages_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no pair of cs and pl"):
        read(write(tmp_path, "memory.tmx", TMX), languages=("cs", "pl"))


def test_columns_of_tsv_are_chosen(tmp_path: Path) -> None:
    path = write(tmp_path, "pairs.tsv", "1\thouse\tHaus\n2\ttree\tBaum\r\n")
    assert read(path, columns=(2, 3)) == [("house", "Haus"), ("tree", "Baum")]
    assert read(path, columns=(3, 2)) == [("Haus", "house"), ("Baum", "tree")]


def test_a_line_with_too_few_columns_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "pairs.tsv", "house\tHaus\ntree Baum\n")
    with pytest.raises(DataError, match=r"pairs\.tsv, line 2: has 1 columns, not 2"):
        read(path)


def test_translated_messages_of_a_catalogue_are_read(tmp_path: Path) -> None:
    path = write(tmp_path, "de.po", PO)
    assert read(path) == PO_PAIRS
    assert read(path, columns=(2, 1)) == [(target, source) for source, target in PO_PAIRS]


def test_the_catalogue_s_character_set_is_used(tmp_path: Path) -> None:
    path = write(tmp_path, "de.po", PO.replace("UTF-8", "ISO-8859-1").encode("latin-1"))
    assert read(path) == PO_PAIRS


def test_an_unknown_character_set_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"de\.po: names a character set klingon"):
        read(write(tmp_path, "de.po", PO.replace("UTF-8", "klingon")))


@pytest.mark.parametrize(
    "charset", ["rot13", "idna", "punycode", "hex", "undefined", "unicode_escape", "utf-7"]
)
def test_a_charset_that_is_no_encoding_of_text_is_named(tmp_path: Path, charset: str) -> None:
    expected = rf"names a character set {charset} that is not known; convert the catalogue to UTF-8"
    with pytest.raises(DataError, match=expected):
        read(write(tmp_path, "de.po", PO.replace("UTF-8", charset)))
    with pytest.raises(DataError, match=expected):
        read(write(tmp_path, "de.mo", mo((b"", f"charset={charset}\n".encode()), (b"a", b"b"))))


@pytest.mark.parametrize(
    ("charset", "written", "text"),
    [
        ("UTF-8", r"\303\244", "ä"),
        ("UTF-8", r"\xc3\xA4x", "äx"),
        ("UTF-8", r"\1011\x414243", "A1C"),
        ("UTF-8", r'\303"' "\n" r'"\244', "ä"),
        ("ISO-8859-1", r"ö\344", "öä"),
        ("SHIFT_JIS", r"表\202\240", "表あ"),
    ],
)
def test_numbers_in_a_catalogue_are_bytes_as_for_gettext(
    tmp_path: Path, charset: str, written: str, text: str
) -> None:
    content = f'msgid ""\nmsgstr "charset={charset}\\n"\n\nmsgid "a"\nmsgstr "{written}"\n'
    path = write(tmp_path, "de.po", content.encode(charset))
    assert read(path) == [("a", text)]
    if shutil.which("msgfmt") is not None:
        subprocess.run(["msgfmt", "-o", tmp_path / "de.mo", path], check=True)
        assert read(tmp_path / "de.mo") == [("a", text)]


@pytest.mark.parametrize("escape", [r"\8", r"\9", r"\²", r"\q", r"\x", "\\"])
def test_an_escape_that_gettext_does_not_know_is_named(tmp_path: Path, escape: str) -> None:
    with pytest.raises(DataError, match=r"de\.po, line 2: gettext has no escape .*; a backslash itself"):
        read(write(tmp_path, "de.po", f'msgid "a"\nmsgstr "b{escape}"\n'))


def test_escaped_bytes_that_are_no_character_are_named(tmp_path: Path) -> None:
    path = write(tmp_path, "de.po", PO + '\nmsgid "a"\nmsgstr "\\303b"\n')
    with pytest.raises(
        DataError, match=r"de\.po, line 28: the message that begins here holds bytes that are not utf-8"
    ):
        read(path)


def test_the_header_itself_is_in_the_character_set_that_it_names(tmp_path: Path) -> None:
    text = PO.replace("UTF-8", "ISO-8859-1").replace("# A header", "# Über\n\n# uns")
    text = text.replace('"Content', '"Last-Translator: Jörg\\n"\n"Content')
    assert read(write(tmp_path, "de.po", text.encode("latin-1"))) == PO_PAIRS


def test_what_is_not_gettext_s_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "de.po", PO + "\nint main() {}\n")
    with pytest.raises(DataError, match=r"de\.po, line 28: 'int main"):
        read(path)


def test_a_compiled_catalogue_holds_the_same(tmp_path: Path) -> None:
    msgfmt = shutil.which("msgfmt")
    if msgfmt is None:
        pytest.skip("gettext is not installed")
    path = write(tmp_path, "de.po", PO)
    for option in ("--endianness=little", "--endianness=big"):
        subprocess.run([msgfmt, option, "-o", tmp_path / "de.mo", path], check=True)
        assert sorted(read(tmp_path / "de.mo")) == sorted(PO_PAIRS)
    with (tmp_path / "de.mo").open("rb") as file:
        assert gettext.GNUTranslations(file).gettext('Open "file"') == "Datei öffnen"


def mo(*messages: tuple[bytes, bytes]) -> bytes:
    """A compiled catalogue, as msgfmt writes it."""
    header, body = 28, b""
    tables: list[list[bytes]] = [[], []]
    start = header + 16 * len(messages)
    for table, side in ((0, 0), (1, 1)):
        for message in messages:
            entry = len(message[side]).to_bytes(4, "little") + (start + len(body)).to_bytes(4, "little")
            tables[table].append(entry)
            body += message[side] + b"\0"
    numbers = [0x950412DE, 0, len(messages), header, header + 8 * len(messages), 0, 0]
    return b"".join(n.to_bytes(4, "little") for n in numbers) + b"".join(tables[0] + tables[1]) + body


def test_contexts_and_plurals_of_a_compiled_catalogue(tmp_path: Path) -> None:
    content = mo(
        (b"", b"Content-Type: text/plain; charset=latin-1\n"), (b"menu\4a\0b", b"\xe4\0B"), (b"no", b"")
    )
    assert read(write(tmp_path, "de.mo", content)) == [("a", "ä"), ("b", "B")]
    with pytest.raises(DataError, match="cut short"):
        read(write(tmp_path, "de.mo", content[:-12]))
    with pytest.raises(DataError, match="not a compiled gettext catalogue"):
        read(write(tmp_path, "de.mo", b"text"))


def test_segments_of_sgml_are_lines(tmp_path: Path) -> None:
    text = '<doc>\n<hl><seg id="1">Rock &amp; Roll </seg></hl>\n<seg id="2">two\nlines</seg> <seg id="3"></seg>\n'
    assert list(LineReader(write(tmp_path, "src.en.sgm", text))) == [b"Rock & Roll", b"two lines", b""]


def test_a_line_end_that_a_segment_names_does_not_cut_it(tmp_path: Path) -> None:
    text = "<SEG>one&#10;line</SEG><seg\nid=2>caf\u00e9 &lt;</seg>\n"
    assert list(LineReader(write(tmp_path, "src.en.sgm", text))) == [b"one line", "caf\u00e9 <".encode()]


def test_a_segment_that_does_not_end_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "<doc>\n<seg>a</seg>\n<seg>b\n" + "c\n" * 1000
    path = write(tmp_path, "src.en.sgm", text)
    with pytest.raises(
        DataError, match=r"src\.en\.sgm, line 3: a <seg> begins here that has no </seg>; fetch"
    ):
        list(LineReader(path))
    monkeypatch.setattr(formats, "LONGEST_LINE_BYTES", 1000)
    with pytest.raises(
        DataError, match=r"src\.en\.sgm, line 3: a <seg> begins here that has no </seg> within"
    ):
        list(LineReader(path))


@pytest.mark.parametrize("line", ["<seg>" * 200_000, "<seg" * 200_000, "<seg>\n" * 200_000])
def test_many_segments_that_do_not_end_take_no_longer_than_reading_them(tmp_path: Path, line: str) -> None:
    path = write(tmp_path, "src.en.sgm", f"<seg>a</seg>{line}\n")
    began = time.process_time()
    with pytest.raises(DataError, match="has no </seg>"):
        list(LineReader(path))
    assert time.process_time() - began < 5


def test_a_reference_to_no_character_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="line 1: has a character reference"):
        list(LineReader(write(tmp_path, "src.en.sgm", f"<seg>&#{'1' * 5000};</seg>")))


def test_a_tmx_file_without_units_is_not_held_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "LONGEST_LINE_BYTES", 100_000)
    unit = '<tu><tuv xml:lang="en"><seg>a</seg></tuv><tuv xml:lang="de"><seg>b</seg></tuv></tu>\n'
    path = write(tmp_path, "memory.tmx", f"<tmx><body>{unit * 3000}</body></tmx>")
    assert len(read(path)) == 3000
    with pytest.raises(DataError, match=r"memory\.tmx: has no whole <tu> within"):
        read(write(tmp_path, "memory.tmx", f"<tmx><body>{unit}<tu><tuv><seg>{'a ' * 200_000}"))


@pytest.mark.parametrize("inside", ["<tu/>", "<note/>", "<tu/><note>x</note>"])
def test_a_tmx_file_without_a_body_does_not_stay_in_memory(inside: str) -> None:
    """Nothing was let go outside <body>: 85 kB of gzip took 179 MB."""
    blocks = [b"<tmx>", *[inside.encode() * 1000] * 100, b"</tmx>"]
    layout = Layout("memory.tmx", languages=("en", "de"))
    tracemalloc.start()
    try:
        assert list(read_tmx(blocks, layout)) == []
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 5_000_000


def test_a_message_without_end_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lines were joined one by one, so that twice as many took four times as long."""
    monkeypatch.setattr(formats, "LONGEST_LINE_BYTES", 100_000)
    message = 'msgid "a"\n' + '"b"\n' * 1000 + 'msgstr "c"\n\n'
    [(source, target), *others] = read(write(tmp_path, "messages.po", message * 100))
    assert (source, target, len(others)) == ("a" + "b" * 1000, "c", 99)
    with pytest.raises(DataError, match=r"line [\d,]+: the message here has more than 0 MiB"):
        read(write(tmp_path, "messages.po", 'msgid "a"\n' + '"b"\n' * 100_000))


def test_a_catalogue_whose_messages_share_their_bytes_is_not_multiplied(tmp_path: Path) -> None:
    content = bytearray(
        mo(*[(b"message %d" % number, b"text") for number in range(1000)], (b"x", b"y" * 50_000))
    )
    length, start = (content[28 + 8 * 2000 + 8 + part :][:4] for part in (0, 4))  # of the long text
    for number in range(1000):
        content[28 + 8 * (1001 + number) : 28 + 8 * (1002 + number)] = length + start
    with pytest.raises(DataError, match="cut short or damaged"):
        read(write(tmp_path, "de.mo", bytes(content)))


def test_a_catalogue_that_is_far_too_long_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "LONGEST_CATALOGUE_BYTES", 1 << 20)
    with pytest.raises(DataError, match=r"de\.mo: has more than 1 MiB"):
        read(write(tmp_path, "de.mo", CATALOGUE + bytes(2 << 20)))


CATALOGUE = mo((b"", b"charset=utf-8"), (b"one\0many", b"eins\0viele"), (b"menu\4a", b"b"))
SAMPLES = {".tsv": b"a\tb\n\xff\tc\n", ".tmx": TMX.encode(), ".po": PO.encode(), ".mo": CATALOGUE}


@pytest.mark.parametrize("ending", PAIR_READERS)
@given(
    cuts=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 4), st.binary(max_size=4)), max_size=4),
    block_bytes=st.integers(1, 400),
)
@example(cuts=[], block_bytes=400)
def test_damaged_files_are_read_or_refused_and_nothing_else(
    ending: str, cuts: list[tuple[float, int, bytes]], block_bytes: int
) -> None:
    data = SAMPLES[ending]
    for place, removed, put in cuts:
        start = round(place * len(data))
        data = data[:start] + put + data[start + removed :]
    blocks = (data[start : start + block_bytes] for start in range(0, len(data), block_bytes))
    with suppress(DataError):
        for pair in PAIR_READERS[ending](blocks, Layout("damaged")):
            assert all(isinstance(side, bytes) for side in pair)


def test_an_unknown_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"must end in one of \.tsv"):
        read(write(tmp_path, "pairs.xlsx", "x"))
