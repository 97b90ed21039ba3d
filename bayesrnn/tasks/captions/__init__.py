"""Captions: describing images with an LSTM, after Show and Tell (Vinyals et al., 2016) [F17, sec. 5.2]."""
