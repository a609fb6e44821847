"""The stage `report`: gather, then write the page."""

from pathlib import Path

from outrider.core.record import RunFolder, output_file
from outrider.core.results import ReportResult
from outrider.report.gather import gather
from outrider.report.page import write_page


def report(run: RunFolder, page: Path) -> ReportResult:
    """Write the run's page, from whatever stages have run.

    Raises:
        InputError: a file of the run folder cannot be read.
    """
    write_page(gather(run), page)
    return ReportResult(page=output_file(page, relative_to=run.path / "report"))
