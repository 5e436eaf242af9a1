"""`metastable lab`: a page on this machine on which a person changes a head and sees the tokens flow.

`state` is the page as one value, `running` its runs, `audits` its audits, `scripts` what it lets people take home. They
compute nothing of their own and need no Dash; `app` and what it imports is the page itself.
"""
