"""The dashboard: reads run directories, and serves pages about them. It never writes there.

    places      which files may be read: those below the given roots
    follow      a file from where the last reading ended
    series      points of a metric, few enough to keep and to draw
    model       a run's journal, followed;  search: an experiment's
    logs        the ranks' logs
    library     finds runs, follows their journals on one thread, notifies who listens
    views       what each page shows, as JSON
    app         pages over HTTP: who may ask, what is pushed
    server      the port, the address with its token

A layer imports only those above it. Nothing here runs in a driver or a worker.
"""

__all__: list[str] = []
