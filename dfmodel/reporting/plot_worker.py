"""Plots drawn in processes of their own, which load matplotlib while the search still runs."""

from __future__ import annotations

import contextlib
import io
import pickle
import signal
import subprocess
import sys
from pathlib import Path

from dfmodel.mapping.result import Result

_CODE = "from dfmodel.reporting.plot_worker import serve; serve()"


#: Processes that share the plots.
PROCESSES = 2


class PlotWorker:
    """Waiting processes; `start` hands them a result, `close` ends them unused."""

    def __init__(self) -> None:
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-c", _CODE],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for _ in range(PROCESSES)
        ]

    def start(self, result: Result, folder: Path) -> None:
        """Begin to draw into `folder`."""
        for number, process in enumerate(self._processes):
            with contextlib.suppress(OSError):
                assert process.stdin is not None
                process.stdin.write(pickle.dumps((result, str(folder), number)))
                process.stdin.close()

    def finish(self, result: Result, folder: Path) -> None:
        """Wait for the plots; where a process failed they are drawn here, so that errors are seen."""
        failed = [process for process in self._processes if process.wait() != 0]
        if failed:
            from dfmodel.reporting.plots import write_plots

            write_plots(result, folder)

    def close(self) -> None:
        """End the processes that still wait."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdin is not None and not process.stdin.closed:
                with contextlib.suppress(OSError):
                    process.stdin.close()


def serve() -> None:
    """Load what drawing needs, then draw what is sent. Interrupts are the command's business: it ends this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from matplotlib.figure import Figure

    from dfmodel.reporting.plots import PLOTS, write_plots

    # a first picture loads fonts and formatters
    first = Figure()
    first.add_subplot().loglog([1, 10], [1, 10], label="a")
    first.savefig(io.BytesIO(), format="png")
    sent = sys.stdin.buffer.read()
    if sent:
        result, folder, number = pickle.loads(sent)
        write_plots(result, Path(folder), list(PLOTS)[number::PROCESSES])
