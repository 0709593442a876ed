"""A whole run on one page, `reports/index.html`: one file that opens without a server and asks the network for nothing.

shown, overview, curves, rescores, findings, lineage, environment   what stands where, in words
scales                                                              where the axes of the curves begin and end
choosing, rollouts, token_views, packing                            rollouts, as the browser reads them
document, vega, assets/                                             the frame: how it looks, what the browser runs
"""
