"""What a topology needs of the machines that it runs on."""


class InFolder:
    """A sink or spout whose rows are in a folder, which the driver and all executors must see at one path.

    Attributes
    ----------
    path : str
        The folder; that of a sink need not be there yet.
    """

    path: str
