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
from itertools import chain
from typing import cast
from xml.etree import ElementTree

from echelon.errors import DataError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
LONGEST_LINE_BYTES = 1 << 24
LONGEST_CATALOGUE_BYTES = 1 << 28
MOST_COPIES = 4
"""How often the messages of a compiled catalogue may use the same bytes, on average."""
SEGMENT_SUFFIX = ".sgm"

LinePair = tuple[bytes, bytes]


@dataclass(frozen=True)
class Layout:
    """What a reader of both sides must know besides the bytes."""

    name: str
    """The text's name in messages."""
    columns: tuple[int, int] = (1, 2)
    """Which column, or side of a catalogue, is the source and which the target, counted from 1."""
    languages: tuple[str, str] = ("en", "de")


def split_lines(blocks: Iterable[bytes], name: object) -> Iterator[bytes]:
    """Cut blocks at '\\n'; '\\r\\n' is taken for a line end too, and a byte order mark is left out."""
    rest = b""
    at_start = is_first = True
    for block in blocks:
        rest += block
        if at_start and len(rest) >= len(BYTE_ORDER_MARK):
            rest = rest.removeprefix(BYTE_ORDER_MARK)
            at_start = False
        *whole, rest = rest.split(b"\n")
        if len(rest) > LONGEST_LINE_BYTES:
            raise DataError(f"{name} has a line of more than {LONGEST_LINE_BYTES >> 20} MiB; is it text?")
        for line in whole:
            is_first = False
            yield line.removesuffix(b"\r")
    if rest:
        if is_first and b"\r" in rest.removesuffix(b"\r"):
            raise DataError(
                f"{name}: its lines end in carriage returns (CR) alone; convert it, e.g. with tr '\\r' '\\n'"
            )
        yield rest.removesuffix(b"\r")


def segments(lines: Iterable[bytes], name: object) -> Iterator[bytes]:
    """The <seg> elements of an SGML file, as WMT publishes its test sets; one may span lines."""
    held = bytearray()
    first_line = 0
    for number, line in enumerate(lines, 1):
        lowered = line.lower()
        if not held:
            first_line = number
            if b"<seg" not in lowered:
                continue
        held += line + b" "
        if b"</seg>" in lowered:
            found, rest = _cut_segments(bytes(held))
            for segment in found:
                yield _segment_line(segment, f"{name}, line {number:,}")
            held, first_line = bytearray(rest), number
        if len(held) > LONGEST_LINE_BYTES:
            raise DataError(
                f"{name}, line {first_line:,}: a <seg> begins here that has no </seg> within "
                f"{LONGEST_LINE_BYTES >> 20} MiB; is the file damaged?"
            )
    if held:
        raise DataError(
            f"{name}, line {first_line:,}: a <seg> begins here that has no </seg>; fetch it again"
        )


def _cut_segments(text: bytes) -> tuple[list[bytes], bytes]:
    """The text of the complete segments, and the rest from where the next one begins."""
    lowered = text.lower()
    whole: list[bytes] = []
    end = 0
    while (start := lowered.find(b"<seg", end)) >= 0:
        tag_end = lowered.find(b">", start)
        close = lowered.find(b"</seg>", tag_end) if tag_end >= 0 else -1
        if close < 0:
            return whole, text[start:]
        whole.append(text[tag_end + 1 : close])
        end = close + len(b"</seg>")
    return whole, b""


def _segment_line(segment: bytes, where: str) -> bytes:
    try:
        text = html.unescape(segment.decode("utf-8", "surrogateescape"))
    except ValueError:  # Python reads no number of thousands of digits
        raise DataError(f"{where}: has a character reference that no character has; is it damaged?") from None
    return text.replace("\n", " ").strip().encode("utf-8", "surrogateescape")


def read_tsv(blocks: Iterable[bytes], layout: Layout) -> Iterator[LinePair]:
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


def read_tmx(blocks: Iterable[bytes], layout: Layout) -> Iterator[LinePair]:
    """The translation units that have both languages; `en` also finds en-GB."""
    parser: ElementTree.XMLPullParser[ElementTree.Element] = ElementTree.XMLPullParser(["start", "end"])
    holders: list[ElementTree.Element] = []
    """The elements that are open, each in the one before."""
    unit_depth: int | None = None
    held_bytes = 0
    for block in chain(filter(None, blocks), [b""]):
        held_bytes += len(block)
        for event, element in _xml_events(parser, block, layout.name):
            if event == "start":
                holders.append(element)
                if unit_depth is None and _local_name(element) == "tu":
                    unit_depth = len(holders)
                continue
            depth = len(holders)
            holders.pop()
            if depth == unit_depth:
                unit_depth = None
                texts = _unit_texts(element)
                source, target = (_of_language(texts, language) for language in layout.languages)
                if source is not None and target is not None:
                    yield source.encode(), target.encode()
                held_bytes = 0
            if unit_depth is None and holders:
                holders[-1].clear()  # what was read, in whatever element, doesn't stay in memory
        if held_bytes > LONGEST_LINE_BYTES:
            raise DataError(
                f"{layout.name}: has no whole <tu> within {LONGEST_LINE_BYTES >> 20} MiB; is it TMX?"
            )


def _xml_events(
    parser: ElementTree.XMLPullParser[ElementTree.Element], block: bytes, name: str
) -> list[tuple[str, ElementTree.Element]]:
    """The elements that the next block starts and ends; an empty block is the end of the file."""
    try:
        if block:
            parser.feed(block)
        else:
            parser.close()
        return cast(list[tuple[str, ElementTree.Element]], list(parser.read_events()))
    except ElementTree.ParseError as error:
        raise DataError(f"{name}: is no TMX file, or a damaged one: {error}") from error
    except (LookupError, ValueError) as error:  # of the encoding that its first line names
        raise DataError(
            f"{name}: its encoding cannot be read ({error}); convert the file to UTF-8"
        ) from error


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


def _segment_text(segment: ElementTree.Element) -> str:
    parts: list[str] = []
    ahead: list[ElementTree.Element | str] = [segment]
    while ahead:
        part = ahead.pop()
        if isinstance(part, str):
            parts.append(part)
            continue
        parts.append(part.text or "")
        for child in reversed(part):
            ahead.append(child.tail or "")
            if _local_name(child) not in _INLINE_CODES:
                ahead.append(child)
    return "".join(parts)


def _of_language(texts: dict[str, str], language: str) -> str | None:
    wanted = language.lower().replace("_", "-")
    codes = [code for code in texts if code == wanted or code.startswith(f"{wanted}-")]
    return texts[min(codes, key=len)] if codes else None


@dataclass
class _GettextEntry:
    """One message of a catalogue while it is being read."""

    parts: dict[str, list[str]] = field(default_factory=dict)
    """The text's lines by keyword; bytes that are yet to be decoded stand in them as `surrogateescape` has them."""
    held_bytes: int = 0
    is_fuzzy: bool = False
    line: int = 0
    """Where it begins."""

    @property
    def header(self) -> str:
        """The catalogue's header: the text of the entry with an empty message."""
        texts = self.texts
        return texts.get("msgstr", "") if texts.get("msgid") == "" else ""

    @property
    def texts(self) -> dict[str, str]:
        """By keyword, joined."""
        return {key: "".join(lines) for key, lines in self.parts.items()}

    @property
    def is_translated(self) -> bool:
        return any(key.startswith("msgstr") for key in self.parts)

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Singular and plural; nothing if it is not, or not surely, translated."""
        texts = self.texts
        if self.is_fuzzy or not texts.get("msgid"):
            return
        plurals = [text for key, text in sorted(texts.items()) if key.startswith("msgstr[")]
        yield texts["msgid"], texts.get("msgstr", plurals[0] if plurals else "")
        if len(plurals) > 1 and "msgid_plural" in texts:
            yield texts["msgid_plural"], plurals[-1]


_KEYWORD = re.compile(r'(msgctxt|msgid_plural|msgid|msgstr(?:\[\d+\])?)\s*(".*")\s*$')
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]+)|(.?))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "\\": "\\", '"': '"'}
_UNDECODED = re.compile("[\udc80-\udcff]")


def read_po(blocks: Iterable[bytes], layout: Layout) -> Iterator[LinePair]:
    """The translated messages of a gettext catalogue's source; fuzzy and obsolete ones are left out."""
    entry, key = _GettextEntry(), ""
    charset: str | None = None
    for number, raw in enumerate(split_lines(blocks, layout.name), 1):
        where = f"{layout.name}, line {number:,}"
        line = _decode_line(raw, charset, where).strip()
        found = _KEYWORD.match(line)
        begins_next = line.startswith("#") or (found is not None and found[1] in ("msgctxt", "msgid"))
        if not line or (begins_next and entry.is_translated):
            if entry.parts:
                charset = _charset(entry.header, charset or "utf-8", layout.name)
                yield from _ordered(_decoded(entry, charset, layout.name), layout)
            entry, key = _GettextEntry(), ""
        entry.held_bytes += 0 if line.startswith("#") else len(raw)
        if entry.held_bytes > LONGEST_LINE_BYTES:
            raise DataError(
                f"{where}: the message here has more than {LONGEST_LINE_BYTES >> 20} MiB; is it a .po file?"
            )
        if line.startswith("#"):
            entry.is_fuzzy |= line.startswith("#,") and "fuzzy" in line
        elif found is not None:
            key = found[1]
            entry.line = entry.line or number
            entry.parts[key] = [_unquoted(found[2], where)]
        elif line.startswith('"') and line.endswith('"') and key:
            entry.parts[key].append(_unquoted(line, where))
        elif line:
            raise DataError(f"{where}: {line[:40]!r} is not gettext's; is it a .po file?")
    yield from _ordered(_decoded(entry, charset or "utf-8", layout.name), layout)


def _decode_line(raw: bytes, charset: str | None, where: str) -> str:
    """The decoded line; until a header names a character set, bytes that are not UTF-8 stay undecoded."""
    if charset is None:
        return raw.decode("utf-8", "surrogateescape")
    try:
        return raw.decode(charset)
    except UnicodeError:
        raise DataError(f"{where}: is not {charset}, as the catalogue says it is") from None


def _decoded(entry: _GettextEntry, charset: str, name: str) -> Iterator[tuple[str, str]]:
    """The entry's pairs, with escaped bytes decoded."""
    for pair in entry.pairs():
        try:
            first, second = (
                text.encode(charset, "surrogateescape").decode(charset) if _UNDECODED.search(text) else text
                for text in pair
            )
        except UnicodeError:
            raise DataError(
                f"{name}, line {entry.line:,}: the message that begins here holds bytes that are not {charset}; "
                "correct them, or the character set that the catalogue's header names"
            ) from None
        yield first, second


_SAMPLE = rb'msgid "a+AEE-b \u0041 .xn--4ca."'
"""What every encoding of text leaves as it is, and those that stand for something else do not."""


def _charset(header: str, charset: str, name: str) -> str:
    """The character set that a catalogue's header names, else the one so far."""
    found = re.search(r"charset=([\w.:-]+)", header, re.ASCII)
    if found is None or found[1] == "CHARSET":  # as templates have it
        return charset
    try:
        charset = codecs.lookup(found[1]).name
        # Shift JIS has the yen where others have the backslash
        if _SAMPLE.decode(charset).replace("¥", "\\").encode() == _SAMPLE:
            return charset
    except (LookupError, UnicodeError):
        pass
    raise DataError(
        f"{name}: names a character set {found[1]} that is not known; convert the catalogue to UTF-8"
    )


def _unquoted(text: str, where: str) -> str:
    """The text between the quotes; numeric escapes are bytes, as in gettext, and a character may need several."""

    def replace(found: re.Match[str]) -> str:
        octal, hexadecimal, letter = found.groups()
        if octal:
            return _undecoded(int(octal, 8) & 0xFF)
        if hexadecimal:
            return _undecoded(int(hexadecimal[-2:], 16))
        if letter in _ESCAPED:
            return _ESCAPED[letter]
        shown = letter.encode(errors="replace").decode()
        raise DataError(f"{where}: gettext has no escape \\{shown}; a backslash itself is written \\\\")

    return _ESCAPE.sub(replace, text[1:-1])


def _undecoded(byte: int) -> str:
    return bytes([byte]).decode("ascii", "surrogateescape")


_MO_MAGIC = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}
_CONTEXT_END = b"\x04"


def read_mo(blocks: Iterable[bytes], layout: Layout) -> Iterator[LinePair]:
    """The messages of a compiled gettext catalogue, which is small enough to read whole."""
    data = _whole(blocks, layout.name)
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

        messages: list[tuple[bytes, bytes]] = []
        copied = 0
        for index in range(count):
            messages.append((string(ids, index), string(texts, index)))
            copied += sum(map(len, messages[-1]))
            if copied > MOST_COPIES * len(data):
                raise struct.error
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


def _whole(blocks: Iterable[bytes], name: str) -> bytes:
    data = bytearray()
    for block in blocks:
        data += block
        if len(data) > LONGEST_CATALOGUE_BYTES:
            raise DataError(f"{name}: has more than {LONGEST_CATALOGUE_BYTES >> 20} MiB; is it a .mo file?")
    return bytes(data)


def _ordered(pairs: Iterable[tuple[str, str]], layout: Layout) -> Iterator[LinePair]:
    """Translated pairs, the side that is the source first."""
    for pair in pairs:
        if all(pair):
            source, target = (pair[column - 1] for column in layout.columns)
            yield source.encode(), target.encode()


PAIR_READERS: dict[str, Callable[[Iterable[bytes], Layout], Iterator[LinePair]]] = {
    ".tsv": read_tsv,
    ".tmx": read_tmx,
    ".po": read_po,
    ".mo": read_mo,
}
"""By the file name's ending, without that of a compression."""
