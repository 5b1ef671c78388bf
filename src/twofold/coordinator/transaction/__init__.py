"""The transaction coordinator: a machine over a partition of `__transaction_state`.

`records` is the format of the log and `state` what the log says; `states` is the table of what may follow what,
`transitions` builds the record of each row, `coordinator` decides which request gets which row or which error, and
`overview` answers questions about transactions.
"""
