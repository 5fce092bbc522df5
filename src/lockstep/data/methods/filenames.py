"""Names of the files that ``Dataset.write_*`` writes, chosen by the user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockstep.data.arrow.formats import to_rows

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FilenameProvider", "file_name"]


class FilenameProvider:
    """Chooses the names of files. Subclass it and implement one of its methods.

    Args:
        dataset_uuid: how the names begin that are not chosen.
        file_format: how they end, such as ``"parquet"``.
    """

    def __init__(self, dataset_uuid: str | None = None, file_format: str | None = None) -> None:
        self.dataset_uuid, self.file_format = dataset_uuid, file_format

    def get_filename_for_task(self, write_uuid: str, task_index: int) -> str:
        """The name of a file: ``task_index`` counts the files of the write ``write_uuid``.

        It begins after the files of earlier writes, with ``mode="overwrite"`` at 0.
        """
        # A subclass of Ray's older form may have no constructor of this class.
        begins, ends = getattr(self, "dataset_uuid", None), getattr(self, "file_format", None)
        name = f"{write_uuid}_{task_index:06}"
        name = name if begins is None else f"{begins}_{name}"
        return name if ends is None else f"{name}.{ends}"

    def get_filename_for_block(
        self, block: Any, write_uuid: str, task_index: int, block_index: int
    ) -> str:
        """The older form: the rows of the file come first."""
        return self.get_filename_for_task(write_uuid, task_index)

    def get_filename_for_row(
        self,
        row: dict[str, Any],
        write_uuid: str,
        task_index: int,
        block_index: int,
        row_index: int,
    ) -> str:
        """The name of the file of one row, where each row is a file: ``write_images``."""
        return self.get_filename_for_task(write_uuid, task_index)


def file_name(provider: FilenameProvider, table: pa.Table, write: str, number: int) -> str:
    """The name that a user's provider chooses.

    Raises:
        TypeError: the provider has no such method.
        ValueError: what it returns is no name of a file.
    """
    if not isinstance(provider, FilenameProvider):
        raise TypeError(
            f"filename_provider={provider!r}: give an object of a subclass of "
            "lockstep.data.datasource.FilenameProvider."
        )
    own = type(provider).get_filename_for_row is not FilenameProvider.get_filename_for_row
    if own and table.num_rows == 1:
        name = provider.get_filename_for_row(to_rows(table)[0], write, number, 0, 0)
    else:
        name = provider.get_filename_for_block(table, write, number, 0)
    if not isinstance(name, str) or not name.strip(".") or "/" in name:
        raise ValueError(
            f"{type(provider).__qualname__} returned {name!r}; return the name of a file, without "
            "slashes."
        )
    return name
