"""The values of options that nobody typed: variables SEATRIAL_OPTION_*, then files seatrial.toml, then defaults.

In a file a key is an option without its dashes. Keys at the top are for every command that has the option, those in a
table [run], [train] or [launch] for that command. A typed list replaces the list of a file.
"""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seatrial.cli.command import Command, commands, options_of
from seatrial.cli.option_values import key_of, read_value, shown_name
from seatrial.environment.identity import identify
from seatrial.errors import RequestError
from seatrial.files import read_trusted
from seatrial.plan.values import shown
from seatrial.targets.hidden_values import is_secret
from seatrial.targets.option import Option, duration_s, process_count
from seatrial.targets.registry import TARGETS
from seatrial.util.toml_text import parse_toml

PREFIX = "SEATRIAL_OPTION_"
"""A variable is this and the key of an option in capitals: ``SEATRIAL_OPTION_NPROC_PER_NODE``."""
FILE = "seatrial.toml"
TABLES = ("run", "train", "launch")
"""The commands that read variables and files."""

_MOST_BYTES = 1 << 16
"""A file of options has some lines."""
_INT_BITS = 63
_WORDS = {"1": True, "true": True, "0": False, "false": False}
_KINDS: Mapping[Any, tuple[tuple[type, ...], str]] = {
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    duration_s: ((int, float, str), "seconds, or a time such as 90s, 5m or 2h"),
    process_count: ((int, str), "a number, auto, gpu or cpu"),
}


@dataclass(frozen=True, slots=True)
class _Source:
    """A variable of the environment, or the keys of one table of a file."""

    start: str
    """The start of the name of a value: ``SEATRIAL_OPTION_``, ``./seatrial.toml: `` or ``./seatrial.toml: run.``."""
    values: Mapping[str, Any]
    """Values by the keys of their options."""
    table: str = ""
    """The only command that reads it; empty: all do."""
    is_environment: bool = False


def with_origins(table: str, typed: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of all options of a command, and under ``origins`` where each one that is set came from.

    Values of options that another target takes are left out, if ``--on`` comes from a stronger source than they. Under
    a launcher variables and files do not say where ranks run: it has decided that. Raises RequestError.

    Args:
        table: one of TABLES.
        typed: values by the names of the options that were typed.
        environ: the environment, which also says where the files of this user are.
    """
    command = commands()[table]
    options = {option.name: option for option in options_of(command)}
    sources = [_variables(environ), *(source for name, path in _files(environ) for source in _tables(name, path))]
    # Most people set none, and knowing all options of all commands costs a tenth of a dry run.
    if any(source.values for source in sources):
        _refuse_unknown(sources)
    values, origins = dict(typed), {name: shown_name(options[name]) for name in typed if name in options}
    strength = dict.fromkeys(typed, -1)
    for number, source in enumerate(sources):
        if source.table not in ("", table):
            continue
        for name, option in _settable(command, environ).items():
            if name not in values and (key := key_of(option)) in source.values:
                origin = source.start + (key.upper() if source.is_environment else key)
                values[name] = _value(option, source.values[key], origin, is_environment=source.is_environment)
                origins[name], strength[name] = origin, number
    _leave_out_options_of_other_targets(values, origins, strength)
    defaults = {name: option.default_value for name, option in options.items()}
    return {**defaults, **values, "origins": origins}


def _variables(environ: Mapping[str, str]) -> _Source:
    found = {name[len(PREFIX) :]: text for name, text in environ.items() if name.startswith(PREFIX) and text}
    return _Source(PREFIX, {name.lower(): text for name, text in found.items()}, is_environment=True)


def _files(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Yield the files, the strongest first, each with its name in sentences."""
    yield f"./{FILE}", Path(FILE)
    home, config = environ.get("HOME", ""), environ.get("XDG_CONFIG_HOME", "")
    if os.path.isabs(config):
        yield f"{config}/seatrial/{FILE}", Path(config, "seatrial", FILE)
    elif os.path.isabs(home):
        yield f"~/.config/seatrial/{FILE}", Path(home, ".config", "seatrial", FILE)
    yield f"/etc/seatrial/{FILE}", Path("/etc/seatrial", FILE)


def _tables(name: str, path: Path) -> Iterator[_Source]:
    """Yield the tables of a file, then its top, whose keys are weaker. Keys may have dashes or underscores."""
    content = _content(name, path)
    if content is None:
        return
    document = parse_toml(content, name, instead=f"remove the file, or set variables {PREFIX}*")
    for table in TABLES:
        if isinstance(document.get(table), dict):
            start = f"{name}: {table}."
            yield _Source(start, _by_key(document.pop(table), start), table=table)
    yield _Source(f"{name}: ", _by_key(document, f"{name}: "))


def _by_key(table: Mapping[str, Any], start: str) -> dict[str, Any]:
    keys = [key.replace("-", "_") for key in table]
    for key in keys:
        if keys.count(key) > 1:
            raise RequestError(f"{start}{key} is given twice, with dashes and with underscores; give it once.")
    return dict(zip(keys, table.values(), strict=True))


def _content(name: str, path: Path) -> str | None:
    """Return the text of a file that only its owner can change, and who is this user or root; None: there is none."""
    try:
        content = read_trusted(path, _MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise RequestError(
            f"{name}: {error.strerror or error}; a file of options must be yours or root's, and have one name, as it"
            " decides what runs."
        ) from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise RequestError(f"{name} is not UTF-8 text: line {line}; write it again.") from None


def _refuse_unknown(sources: Sequence[_Source]) -> None:
    """Raise RequestError for a value that no command, or not the command of its table, would ever read."""
    known = {
        table: {key_of(option): option for option in options_of(commands()[table]) if key_of(option)}
        for table in TABLES
    }
    known[""] = {key: option for options in list(known.values()) for key, option in options.items()}
    for source in sources:
        for key, value in source.values.items():
            option = known[source.table].get(key)
            if option is not None and not option.only_typed:
                continue
            if isinstance(value, dict):
                raise RequestError(f"{source.start}{key} is no table of options; expected {', '.join(TABLES)}.")
            name = key.upper() if source.is_environment else key
            if option is not None:
                raise RequestError(f"{source.start}{name}: nothing but a person may set it; type {shown_name(option)}.")
            near = difflib.get_close_matches(key, known[source.table], n=1)
            hint = ""
            if near:
                hint = f"did you mean {PREFIX + near[0].upper() if source.is_environment else near[0]}?"
            help_of = f"seatrial {source.table or 'run'} --help"
            raise RequestError(f"{source.start}{name}: there is no such option; {hint or f'see {help_of}.'}")


def _settable(command: Command, environ: Mapping[str, str]) -> dict[str, Option]:
    """Return the options of a command that variables and files may set, by their names."""
    from seatrial.request.program_options import PROGRAM

    own, *others = command.options().values()
    if identify(environ).level == "none":
        return {option.name: option for group in (own, *others) for option in group}
    return {option.name: option for option in own if option not in PROGRAM}


def _value(option: Option, value: Any, origin: str, *, is_environment: bool) -> Any:
    if is_environment:
        return _value_of_text(option, value, origin)
    if option.flag:
        if not isinstance(value, bool):
            raise RequestError(f"{origin} is {shown(value)}, expected true or false.")
        return value
    parts = value if isinstance(value, list) and (option.multiple or option.is_list) else [value]
    choices = f"one of {', '.join(option.type)}" if isinstance(option.type, tuple) else "a string"
    kinds, words = _KINDS.get(option.type, ((str,), choices))
    several = " or a list" if option.multiple or option.is_list else ""
    for part in parts:
        if isinstance(part, int) and part.bit_length() > _INT_BITS:  # which Python may not even write in decimal
            raise RequestError(f"{origin} is a whole number of more than {_INT_BITS} bits, expected {words}{several}.")
        if isinstance(part, bool) or not isinstance(part, kinds):
            raise RequestError(f"{origin} is {_shown(option, value)}, expected {words}{several}.")
        if option.name == "env" and is_secret(*str(part).partition("=")[::2]):
            name = str(part).partition("=")[0]
            raise RequestError(
                f"{origin} has {name}, which may be a secret; keep it out of files: type --env, or set it on the nodes."
            )
    return _in_one(option, [_read(option, str(part), origin) for part in parts])


def _shown(option: Option, value: Any) -> str:
    """Return a value for an error message; of one that may hold a secret only its kind."""
    text = shown(value)
    kind = text.rpartition("(")[2].rstrip(")")
    # Python writes no integer of thousands of digits, and ``shown`` has only its kind.
    is_hidden = option.name == "env" or isinstance(value, dict) or (text != kind and is_secret("", str(value)))
    return kind if is_hidden else text


def _value_of_text(option: Option, text: str, origin: str) -> Any:
    if option.flag:
        if text.lower() not in _WORDS:
            raise RequestError(f"{origin}={text}: expected 1, true, 0 or false.")
        return _WORDS[text.lower()]
    if not option.multiple:
        return _read(option, text, origin)
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise RequestError(f"{origin}: {error}; separate values by spaces, and quote those with spaces.") from None
    return _in_one(option, [_read(option, word, origin) for word in words])


def _read(option: Option, text: str, origin: str) -> Any:
    try:
        return read_value(option, text)
    except RequestError as error:
        raise RequestError(f"{str(error).rstrip('.')} (from {origin}).") from None


def _in_one(option: Option, parts: list[Any]) -> Any:
    if option.is_list:
        return ",".join(parts) or None
    return tuple(parts) if option.multiple else parts[0]


def _leave_out_options_of_other_targets(
    values: dict[str, Any], origins: dict[str, str], strength: Mapping[str, int]
) -> None:
    target = TARGETS.get(values.get("target", ""))
    if target is None:
        return
    taken = {option.name for option in target.options}
    for option in (option for other in TARGETS.values() for option in other.options):
        if option.name not in taken and strength.get(option.name, -1) > strength["target"]:
            values.pop(option.name, None)
            origins.pop(option.name, None)


def name_origins(message: str, table: str, origins: Mapping[str, str]) -> str:
    """Return the message of an error with the origin of each option in it that nobody typed."""
    words = message.replace(":", " ").replace(",", " ").replace(";", " ").replace("=", " ").rstrip(".").split()
    named = [
        f"{shown_name(option)} is from {origins[option.name]}"
        for option in options_of(commands()[table])
        if option.flags and origins.get(option.name, shown_name(option)) != shown_name(option)
        if shown_name(option) in words and origins[option.name] not in message
    ]
    return f"{message} ({'; '.join(named)})" if named else message
