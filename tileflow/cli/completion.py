"""`tileflow completion`: scripts by which shells complete commands, flags and their values, made from the parser."""
from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from shlex import quote

from ..system.exit_codes import OK
from ..system.packaged import PACKAGED_MODELS
from ..system.terminal import say

HELP = "print a script that completes commands and flags in a shell: bash, zsh or fish"
EPILOG = ("bash: echo 'source <(tileflow completion bash)' >> ~/.bashrc; zsh: echo 'source <(tileflow completion zsh)' "
          ">> ~/.zshrc, below compinit; fish: tileflow completion fish > ~/.config/fish/completions/tileflow.fish")
FILES = ("DIR", "FILE", "PATH")
"""Values that are names of files."""
LONGEST = 80
"""Characters of a flag's sentence."""


@dataclass(frozen=True)
class Flag:
    """A flag: its names, its sentence, whether it takes a value, must have one, which there are, and whether it is a
    file."""

    names: Sequence[str]
    says: str
    value: str | None
    needed: bool
    choices: Sequence[str]
    is_file: bool


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=sorted(SCRIPTS), help="the shell")


def run(chosen: argparse.Namespace) -> int:
    """`tileflow completion`."""
    commands = next(a for a in chosen.parser._actions if isinstance(a, argparse._SubParsersAction))
    says = {a.dest: a.help or "" for a in commands._choices_actions}
    say("\n".join(SCRIPTS[chosen.shell](says, {name: list(_flags(sub)) for name, sub in commands.choices.items()})))
    return OK


def _flags(parser: argparse.ArgumentParser) -> Iterator[Flag]:
    """The flags of a command, but for those that only go on working."""
    for a in parser._actions:
        if a.help != argparse.SUPPRESS:
            value = None if a.nargs == 0 else str(a.metavar or a.dest)
            among = re.match(r"\{(.*?)\}", value or "")
            choices = list(a.choices or (among[1].split(",") if among else ()))
            says = re.split(r"[;:(]", a.help or "")[0].replace("%%", "%").strip()
            yield Flag(a.option_strings, says[:LONGEST], value, a.nargs != "?", choices, value in FILES)


def _bash(says: Mapping[str, str], commands: Mapping[str, Sequence[Flag]]) -> Iterator[str]:
    yield from ("_tileflow() {",
                "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} flags= values=",
                '    [[ $before == = ]] && before=${COMP_WORDS[COMP_CWORD-2]}',
                "    [[ $word == = ]] && word=",
                f'    if (( COMP_CWORD == 1 )); then COMPREPLY=($(compgen -W {quote(" ".join(says))} -- "$word")); '
                'return; fi', "    case ${COMP_WORDS[1]} in")
    for name, flags in commands.items():
        own = [f for f in flags if f.names]
        yield f"    {name})"
        yield f"        flags={quote(' '.join(n for f in own for n in f.names))}"
        yield "        case $before in"
        for f in own:
            if f.choices:
                choices = quote(" ".join(f.choices))
                yield f"""        {"|".join(f.names)}) COMPREPLY=($(compgen -W {choices} -- "$word")); return ;;"""
        asked = [n for f in own if f.value and f.needed and not f.choices and not f.is_file for n in f.names]
        if asked:
            yield f"        {'|'.join(asked)}) return ;;"
        yield "        esac"
        words = quote(" ".join(_words(flags)))
        if any(f.choices for f in flags if not f.names):            # no files
            yield f'        [[ $word == -* ]] || {{ COMPREPLY=($(compgen -W {words} -- "$word")); return; }} ;;'
        else:
            yield f"        values={words} ;;"
    yield from ("    esac",
                '    if [[ $word == -* ]]; then COMPREPLY=($(compgen -W "$flags" -- "$word"))',
                '    else COMPREPLY=($(compgen -W "$values" -- "$word")) && compopt +o filenames 2>/dev/null',
                '        local IFS=$\'\\n\'; COMPREPLY+=($(compgen -f -- "$word")); fi',
                "}",
                "complete -o filenames -F _tileflow tileflow")


def _words(flags: Sequence[Flag]) -> list[str]:
    """What a command's positional arguments may be, besides files."""
    return [word for f in flags if not f.names
            for word in (f.choices or (PACKAGED_MODELS if f.value == "MODEL" else ()))]


def _zsh(says: Mapping[str, str], commands: Mapping[str, Sequence[Flag]]) -> Iterator[str]:
    def text(words: str) -> str:
        return re.sub(r"([\[\]:\\])", r"\\\1", words)

    listed = " ".join(quote(f"{name}:{text(words)}") for name, words in says.items())
    yield from ("#compdef tileflow", "_tileflow() {", "    local -a commands", f"    commands=({listed})",
                "    if (( CURRENT == 2 )); then _describe command commands; return; fi",
                "    local command=$words[2]", "    shift words; (( CURRENT-- ))", "    case $command in")
    for name, flags in commands.items():
        specs = []
        for f in (f for f in flags if f.names):
            action = f"({' '.join(f.choices)})" if f.choices else "_files" if f.is_file else " "
            value = f"{':' if f.needed else '::'}{text(f.value)}:{action}" if f.value else ""
            specs += [quote(f"{n}{'=' if f.value else ''}[{text(f.says)}]{value}") for n in f.names]
        words = _words(flags)
        files = "" if any(f.choices for f in flags if not f.names) else "; _files"
        specs.append(quote(f"*:file:{{ compadd -- {' '.join(words)}{files} }}" if words else "*:file:_files"))
        yield f"    {name}) _arguments {' '.join(specs)} ;;"
    yield from ("    esac", "}", "compdef _tileflow tileflow")


def _fish(says: Mapping[str, str], commands: Mapping[str, Sequence[Flag]]) -> Iterator[str]:
    def text(words: str) -> str:
        return "'" + words.replace("\\", "\\\\").replace("'", "\\'") + "'"

    for name, words in says.items():
        yield f"complete -c tileflow -n __fish_use_subcommand -f -a {name} -d {text(words)}"
    for name, flags in commands.items():
        within = f"complete -c tileflow -n '__fish_seen_subcommand_from {name}'"
        for f in (f for f in flags if f.names):
            names = " ".join(f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in f.names)
            value = (f" -x -a {text(' '.join(f.choices))}" if f.choices else
                     "" if not f.value else " -r -F" if f.is_file else " -x" if f.needed else "")
            yield f"{within} {names}{value} -d {text(f.says)}"
        if more := _words(flags):
            yield f"{within}{' -f' if any(f.choices for f in flags if not f.names) else ''} -a {text(' '.join(more))}"


SCRIPTS = {"bash": _bash, "fish": _fish, "zsh": _zsh}
"""By shell, what writes its script of the commands' sentences and flags."""
