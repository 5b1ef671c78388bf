"""A Spark pipeline from one file: `transform(df) -> df` between topics, exactly once.

`twofold pipeline run FILE.py` runs it; the same file can be given to spark-submit when it ends with

    if __name__ == "__main__":
        from twofold.cli.pipeline.run import main

        main(__file__)
"""
