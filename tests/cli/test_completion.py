"""The scripts of `tileflow completion`, run by the shells that they are for."""
from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tileflow import cli
from tileflow.cli.parser import COMMANDS, make_parser

CASES = [
    ("co", {"compare", "compile", "completion"}),
    ("train --skip-non-f", {"--skip-non-finite"}),
    ("train --loss cro", {"cross_entropy"}),
    ("train --loss=cro", {"cross_entropy"}),
    ("train digits_c", {"digits_cnn.onnx"}),
    ("infer --out tab", {"table.csv"}),
    ("inspect tab", {"table.csv"}),
    ("train --epochs ", set()),
    ("completion z", {"zsh"}),
    ("train --no-shu", {"--no-shuffle"}),
    ("compile --recomp", {"--recompute", "--recomputation-checkpoints"}),
]
"""What has been typed behind `tileflow`, and all that it may become."""
ASK = {
    "bash": "words=({words}); last=${{words[-1]}}\n"
            "[[ $last == *=* ]] && words=(\"${{words[@]:0:${{#words[@]}}-1}}\" \"${{last%%=*}}\" = \"${{last#*=}}\")\n"
            "COMP_WORDS=(\"${{words[@]}}\"); COMP_CWORD=$((${{#words[@]}}-1)); _tileflow; printf '%s\\n' "
            "\"${{COMPREPLY[@]}}\"",
    "fish": "complete -C {line}",
}
"""How a shell is asked."""


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["completion", shell]) == 0
    return capsys.readouterr().out


def shell_of(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"completes in {name}, which is not installed: apt-get install {name}")
    return found


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_words_are_completed(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = shell_of(shell)
    (tmp_path / "table.csv").touch()
    (tmp_path / "script").write_text(script(shell, capsys))
    for typed, wanted in CASES:
        words = " ".join(shlex.quote(w) for w in ["tileflow", *typed.split(" ")])
        asked = "source ./script\n" + ASK[shell].format(words=words, line=shlex.quote(f"tileflow {typed}"))
        done = subprocess.run([program, *(["--norc"] if shell == "bash" else ["--no-config"]), "-c", asked],
                              cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
        assert not done.stderr
        lines = [line for line in done.stdout.split("\n") if line]
        assert {line.partition("\t")[0].removeprefix("--loss=") for line in lines} == wanted, typed


def test_words_are_completed_in_zsh(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a terminal of its own (zpty): Tab, then Enter, which shows what the line has become."""
    program = shell_of("zsh")
    (tmp_path / "table.csv").touch()
    (tmp_path / "script").write_text(script("zsh", capsys))
    (tmp_path / "ask").write_text(
        "zmodload zsh/zpty\nzpty z zsh -f -i\n"
        "zpty -w z 'PS1=; autoload -U compinit; compinit -D -u; source ./script; tileflow() { print -r -- ME NOW $* "
        "END }; print REA''DY'\nzpty -r -m z line '*READY*'\n"
        + "".join(f"zpty -w -n z {shlex.quote(f'tileflow {typed}')}$'\\t\\n'; zpty -r -m z line '*ME NOW*END*'; print "
                  "-r -- $line\n"
                  for typed, wanted in CASES if len(wanted) == 1))
    done = subprocess.run([program, "-f", "ask"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120)
    found = re.findall(r"ME NOW (.*?) END", done.stdout)
    wanted = [next(iter(words)) for _, words in CASES if len(words) == 1]
    assert [line.split()[-1].removeprefix("--loss=") for line in found] == wanted


def test_every_flag_of_every_command_is_in_every_script(capsys: pytest.CaptureFixture[str]) -> None:
    """But for those that only go on working under an old name."""
    commands = next(a for a in make_parser()._actions if isinstance(a, argparse._SubParsersAction)).choices
    assert commands.keys() == COMMANDS.keys()
    texts = {shell: script(shell, capsys) for shell in ("bash", "fish", "zsh")}
    for name, parser in commands.items():
        shown = {n for a in parser._actions if a.help != argparse.SUPPRESS for n in a.option_strings}
        flags = re.search(rf"^    {name}\)\n        flags='?(.*?)'?$", texts["bash"], re.MULTILINE)
        assert flags
        assert set(flags[1].split()) == shown
        fish = re.findall(rf"__fish_seen_subcommand_from {name}' ((?:-[ls] \S+ )+)", texts["fish"])
        assert {f"--{n}" if kind == "l" else f"-{n}" for names in fish
                for kind, n in re.findall(r"-([ls]) (\S+)", names)} == shown
        zsh = re.search(rf"^    {name}\) _arguments (.*) ;;$", texts["zsh"], re.MULTILINE)
        assert zsh
        assert {spec.partition("[")[0].removesuffix("=")
                for spec in shlex.split(zsh[1]) if spec.startswith("-")} == shown


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", "csh"]) == 2
    assert "'bash', 'fish', 'zsh'" in capsys.readouterr().err
