"""`metastable lab`: a page on this machine on which users change a head and watch the tokens move.

`state` describes the page, `runs` computes its simulations and `encoders` its audits; these need no Dash. `app` is the
server, `page` its components, `callbacks` its answers, `words` its text and `downloads` its files.
"""
