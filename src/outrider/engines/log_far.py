"""A log's files on another machine: a loop of its `sh` answers one request a line; it needs a Linux and its usual tools.

It only ever answers: what a cut has torn is asked for again, and no state but the file it holds open is lost with it.
"""

from outrider.core.ssh import FarProcess
from outrider.engines.log_following import LAST_NUMBER, Listing, LogFile, Look, missing, no_file, not_allowed

_BLOCK_BYTES = 4096  # files are read in whole blocks: `dd` then seeks
_GREETING = "outrider-log"
_SH = """
LC_ALL=C; export LC_ALL; set -f
path=$1; last=$2; block=$3; held=; held_file=/proc/$$/fd/3
named() { name=$path; [ "$1" = 0 ] || name=$path.$1; }
stated() {
  inode=0; size=0; kind=
  line=$(ls -Ldin "$1" 2>/dev/null) || return 1
  set -- $line
  inode=$1; kind=${2%"${2#?}"}; [ "$kind" != - ] || size=$6
}
list() {
  n=0
  while [ $n -le $last ]; do
    named $n
    [ -e "$name" ] && stated "$name" && echo "$n $inode $size $kind"
    n=$((n + 1))
  done
  if [ ! -d "${path%/*}/" ]; then echo end no-folder
  elif [ ! -x "${path%/*}/" ]; then echo end denied
  else echo end; fi
}
hold() {
  named $1
  if [ ! -e "$name" ]; then echo moved
  elif [ ! -r "$name" ]; then echo denied
  elif exec 4<"$name" && stated /proc/$$/fd/4 && [ $inode = $2 ]; then exec 3<&4 4<&-; held=$inode; echo held
  else echo moved; fi
}
look() {
  stated "$path"; at="$inode $size $kind"
  [ "$inode" = "$held" ] || stated $held_file
  n=$((size - $2 * block))
  if [ $size = $1 ] || [ $n -lt 0 ]; then n=0; fi
  if [ $n -gt $(($3 * block)) ]; then n=$(($3 * block)); fi
  echo "$n $size $at"
  [ $n -gt 0 ] || return 0
  { dd bs=$block skip=$2 count=$3 <$held_file; cat /dev/zero; } 2>/dev/null | head -c $n
  stated $held_file
  if [ $size -ge $(($2 * block + n)) ]; then echo whole; else echo torn; fi
}
echo GREETING
while read -r what a b c; do $what "$a" "$b" "$c"; done
""".replace("GREETING", _GREETING)


class CutOff(Exception):
    """The connection ended before a reply was whole."""


def far_command(path: str) -> list[str]:
    """What is run on the other machine."""
    return ["sh", "-c", _SH, "outrider", path, str(LAST_NUMBER), str(_BLOCK_BYTES)]


class FarFiles:
    """A log's files on another machine, as the far command at the other end of a process answers. Raises CutOff."""

    def __init__(self, process: FarProcess, path: str) -> None:
        self._process, self._path = process, path
        while self._line() != [_GREETING]:  # a login may print something of its own
            pass

    def listing(self) -> Listing:
        """The files there are; InputError if the path is no file or may not be seen."""
        self._ask("list")
        files = []
        while (words := self._line())[0] != "end":
            number, inode, size, kind = words
            if kind == "-":
                files.append(LogFile(int(number), int(inode), int(size)))
            elif number == "0":
                raise no_file(self._path)
        if "denied" in words:
            raise not_allowed(self._path)
        return Listing(files, "" if files and not files[0].number else missing(self._path, "no-folder" not in words))

    def hold(self, file: LogFile) -> bool:
        """Hold this file instead; InputError if the path may not be read."""
        self._ask("hold", file.number, file.inode)
        [answer] = self._line()
        if answer == "denied" and not file.number:
            raise not_allowed(self._path)
        return answer == "held"

    def look(self, offset: int, before: int, limit: int) -> Look:
        """What is at the path, then what the held file has. A reply during which the file was cut short is asked for again."""
        first, skipped = divmod(offset - before, _BLOCK_BYTES)
        num_blocks = -(-(skipped + before + limit) // _BLOCK_BYTES)
        while True:
            self._ask("look", offset, first, num_blocks)
            num_bytes, size, at_inode, at_size, *kind = self._line()
            data = self._process.output.read(int(num_bytes))
            if not int(num_bytes) or self._line() == ["whole"]:
                break
        if kind and kind != ["-"]:
            raise no_file(self._path)
        at_path = LogFile(0, int(at_inode), int(at_size)) if kind else None
        return Look(at_path, None if int(size) == offset else data[skipped : skipped + before + limit])

    def _ask(self, *words: object) -> None:
        try:
            self._process.input.write(" ".join(map(str, words)).encode() + b"\n")
            self._process.input.flush()
        except BrokenPipeError as error:
            raise CutOff from error

    def _line(self) -> list[str]:
        line = self._process.output.readline()
        if not line.endswith(b"\n"):
            raise CutOff
        return line.decode(errors="replace").split() or [""]
