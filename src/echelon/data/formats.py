"""How text lies in files: lines, SGML segments, and the formats that hold both sides: TSV, TMX, gettext catalogues.

Everything reads blocks of bytes and gives lines or pairs of lines, as UTF-8 without line ends.
"""

from __future__ import annotations

import codecs
import html
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import cast
from xml.etree import ElementTree

from echelon.errors import DataError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
LONGEST_LINE_BYTES = 1 << 24
SEGMENT_SUFFIX = ".sgm"

Pair = tuple[bytes, bytes]


@dataclass(frozen=True)
class Layout:
    """What a reader of both sides must know beside the bytes."""

    name: str
    """What messages call the text."""
    columns: tuple[int, int] = (1, 2)
    """Which column, or side of a catalogue, is the source and which the target, counted from 1."""
    languages: tuple[str, str] = ("en", "de")


def split_lines(blocks: Iterable[bytes], name: object) -> Iterator[bytes]:
    """Cut blocks at '\\n'; '\\r\\n' is taken for a line end too, and a byte order mark is left out."""
    rest = b""
    at_start = True
    for block in blocks:
        rest += block
        if at_start and len(rest) >= len(BYTE_ORDER_MARK):
            rest = rest.removeprefix(BYTE_ORDER_MARK)
            at_start = False
        *whole, rest = rest.split(b"\n")
        if len(rest) > LONGEST_LINE_BYTES:
            raise DataError(f"{name} has a line of more than {LONGEST_LINE_BYTES >> 20} MiB; is it text?")
        for line in whole:
            yield line.removesuffix(b"\r")
    if rest:
        yield rest.removesuffix(b"\r")


def segments(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The <seg> elements of an SGML file, as WMT publishes its test sets; one may span lines."""
    held = b""
    for line in lines:
        held += line + b" "
        while found := re.search(rb"<seg[^>]*>(.*?)</seg>", held, re.DOTALL | re.IGNORECASE):
            yield (
                html.unescape(found[1].decode("utf-8", "surrogateescape"))
                .strip()
                .encode("utf-8", "surrogateescape")
            )
            held = held[found.end() :]
        if b"<seg" not in held.lower():
            held = b""


def read_tsv(blocks: Iterable[bytes], layout: Layout) -> Iterator[Pair]:
    """Two columns of a file whose lines are cut by tabs."""
    source, target = layout.columns
    for number, line in enumerate(split_lines(blocks, layout.name), 1):
        columns = line.split(b"\t")
        if len(columns) < max(source, target):
            raise DataError(
                f"{layout.name}, line {number:,}: has {len(columns)} columns, not {max(source, target)}; "
                "is it cut by tabs?"
            )
        yield columns[source - 1], columns[target - 1]


_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
_INLINE_CODES = {"bpt", "ept", "ph", "it", "ut"}
"""Elements of a segment that hold another format's mark-up, not text."""


def read_tmx(blocks: Iterable[bytes], layout: Layout) -> Iterator[Pair]:
    """The translation units that have both languages; `en` also finds en-GB."""
    parser: ElementTree.XMLPullParser[ElementTree.Element] = ElementTree.XMLPullParser(["start", "end"])
    body: ElementTree.Element | None = None
    try:
        for block in blocks:
            parser.feed(block)
            for event, element in cast(Iterator[tuple[str, ElementTree.Element]], parser.read_events()):
                if event == "start":
                    body = element if _local_name(element) == "body" else body
                elif _local_name(element) == "tu":
                    texts = _unit_texts(element)
                    source, target = (_of_language(texts, language) for language in layout.languages)
                    if source is not None and target is not None:
                        yield source.encode(), target.encode()
                    if body is not None:
                        body.clear()  # what was read doesn't stay in memory
        parser.close()
    except ElementTree.ParseError as error:
        raise DataError(f"{layout.name}: is no TMX file, or a damaged one: {error}") from error


def _local_name(element: ElementTree.Element) -> str:
    return str(element.tag).rpartition("}")[2]


def _unit_texts(unit: ElementTree.Element) -> dict[str, str]:
    """The first segment of each language of a unit, by its language code in lower case."""
    texts: dict[str, str] = {}
    for variant in unit:
        code = variant.get(_LANGUAGE) or variant.get("lang")
        segment = next((child for child in variant if _local_name(child) == "seg"), None)
        if _local_name(variant) == "tuv" and code and segment is not None:
            texts.setdefault(code.lower().replace("_", "-"), _segment_text(segment))
    return texts


def _segment_text(element: ElementTree.Element) -> str:
    parts = [element.text or ""]
    for child in element:
        if _local_name(child) not in _INLINE_CODES:
            parts.append(_segment_text(child))
        parts.append(child.tail or "")
    return "".join(parts)


def _of_language(texts: dict[str, str], language: str) -> str | None:
    wanted = language.lower().replace("_", "-")
    codes = [code for code in texts if code == wanted or code.startswith(f"{wanted}-")]
    return texts[min(codes, key=len)] if codes else None


@dataclass
class _Entry:
    """One message of a catalogue while it is being read."""

    texts: dict[str, str] = field(default_factory=dict)
    is_fuzzy: bool = False

    @property
    def header(self) -> str:
        """The text of the entry whose message is empty: it describes the catalogue."""
        return self.texts.get("msgstr", "") if self.texts.get("msgid") == "" else ""

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Singular and plural; nothing where it is not, or not surely, translated."""
        if self.is_fuzzy or not self.texts.get("msgid"):
            return
        plurals = [text for key, text in sorted(self.texts.items()) if key.startswith("msgstr[")]
        yield self.texts["msgid"], self.texts.get("msgstr", plurals[0] if plurals else "")
        if len(plurals) > 1 and "msgid_plural" in self.texts:
            yield self.texts["msgid_plural"], plurals[-1]


_KEYWORD = re.compile(r'(msgctxt|msgid_plural|msgid|msgstr(?:\[\d+\])?)\s*(".*")\s*$')
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


def read_po(blocks: Iterable[bytes], layout: Layout) -> Iterator[Pair]:
    """The translated messages of a gettext catalogue's source; fuzzy and obsolete ones are left out."""
    entry, key, charset = _Entry(), "", "utf-8"
    for number, raw in enumerate(split_lines(blocks, layout.name), 1):
        line = _decode_line(raw, charset, layout.name, number).strip()
        found = _KEYWORD.match(line)
        begins_next = line.startswith("#") or (found is not None and found[1] in ("msgctxt", "msgid"))
        if not line or (begins_next and any(key.startswith("msgstr") for key in entry.texts)):
            charset = _charset(entry.header, charset, layout.name)
            yield from _ordered(entry.pairs(), layout)
            entry, key = _Entry(), ""
        if line.startswith("#"):
            entry.is_fuzzy |= line.startswith("#,") and "fuzzy" in line
        elif found is not None:
            key = found[1]
            entry.texts[key] = _unquoted(found[2])
        elif line.startswith('"') and line.endswith('"') and key:
            entry.texts[key] += _unquoted(line)
        elif line:
            raise DataError(
                f"{layout.name}, line {number:,}: {line[:40]!r} is not gettext's; is it a .po file?"
            )
    yield from _ordered(entry.pairs(), layout)


def _decode_line(raw: bytes, charset: str, name: str, number: int) -> str:
    try:
        return raw.decode(charset)
    except UnicodeDecodeError:
        raise DataError(f"{name}, line {number:,}: is not {charset}, as the catalogue says it is") from None


def _charset(header: str, charset: str, name: str) -> str:
    """The character set that a catalogue's header names, else the one so far."""
    found = re.search(r"charset=([\w.:-]+)", header)
    if found is None or found[1] == "CHARSET":  # as templates have it
        return charset
    try:
        return codecs.lookup(found[1]).name
    except LookupError:
        raise DataError(f"{name}: names a character set {found[1]} that is not known") from None


def _unquoted(text: str) -> str:
    def replace(found: re.Match[str]) -> str:
        code = found[1]
        if code[0] == "x" and len(code) > 1:
            return chr(int(code[1:], 16))
        return chr(int(code, 8)) if code[0].isdigit() else _ESCAPED.get(code, code)

    return _ESCAPE.sub(replace, text[1:-1])


_MO_MAGIC = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}
_CONTEXT_END = b"\x04"


def read_mo(blocks: Iterable[bytes], layout: Layout) -> Iterator[Pair]:
    """The messages of a compiled gettext catalogue, which is read whole: they are small."""
    data = b"".join(blocks)
    order = _MO_MAGIC.get(data[:4])
    if order is None:
        raise DataError(f"{layout.name}: is not a compiled gettext catalogue (.mo)")
    try:
        count, ids, texts = struct.unpack_from(f"{order}3I", data, 8)

        def string(table: int, index: int) -> bytes:
            length, offset = struct.unpack_from(f"{order}2I", data, table + 8 * index)
            if offset + length > len(data):
                raise struct.error
            return data[offset : offset + length]

        messages = [(string(ids, index), string(texts, index)) for index in range(count)]
    except struct.error:
        raise DataError(f"{layout.name}: the catalogue is cut short or damaged; fetch it again") from None
    header = next((text for message, text in messages if not message), b"")
    charset = _charset(header.decode("latin-1"), "utf-8", layout.name)
    for message, text in messages:
        forms = text.decode(charset, "replace").split("\0")
        originals = message.partition(_CONTEXT_END)[2] or message
        named = originals.decode(charset, "replace").split("\0")
        if message:
            both = [(named[0], forms[0])] + (
                [(named[1], forms[-1])] if len(named) > 1 and len(forms) > 1 else []
            )
            yield from _ordered(both, layout)


def _ordered(pairs: Iterable[tuple[str, str]], layout: Layout) -> Iterator[Pair]:
    """Translated pairs, the side that is the source first."""
    for pair in pairs:
        if all(pair):
            source, target = (pair[column - 1] for column in layout.columns)
            yield source.encode(), target.encode()


PAIR_READERS: dict[str, Callable[[Iterable[bytes], Layout], Iterator[Pair]]] = {
    ".tsv": read_tsv,
    ".tmx": read_tmx,
    ".po": read_po,
    ".mo": read_mo,
}
"""By the file name's ending, without that of a compression."""
