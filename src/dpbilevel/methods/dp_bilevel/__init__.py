"""The paper's DP Bilevel: private solves of the lower level and noisy hypergradients."""
