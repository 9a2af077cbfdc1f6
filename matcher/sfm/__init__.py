"""From a folder of images to a sparse model, in stages that can each be restarted and read by others.

1. `photos`: names, sizes, order · `pairs`: which images to match
2. `frontend`: describe every image once, match every pair, with what is done kept on disk
3. `tracks`: matches of pairs become points seen in many images · `sharpening`: correlation places them
4. `geometry`: verification of every pair, with the reason where one is rejected
5. `database`, `hloc`, `exports`: files of COLMAP and hloc, text, npz · `checking`: what a mapper would refuse
6. `mapping`: the model, by pycolmap · `accuracy`: against known cameras · `localisation`: new images
7. `distribution`: the same by many processes or machines
"""
